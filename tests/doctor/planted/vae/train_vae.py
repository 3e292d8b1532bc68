import torch
from network import VAE, vae_loss


def fit(model, loader, optimizer):
    for image in loader:
        optimizer.zero_grad(set_to_none=True)
        decoded, mean, log_var = model(image)
        loss = vae_loss(decoded, image, mean, log_var)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    model = VAE()
    fit(model, torch.load("loader.pt"), torch.optim.Adam(model.parameters(), lr=1e-3))
