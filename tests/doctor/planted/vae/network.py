import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(784, 40)
        self.decoder = nn.Linear(20, 784)

    def forward(self, image):
        mean, log_var = self.encoder(image).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decoder(z), mean, log_var


def vae_loss(image, given, mean, log_var):
    kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(-1).mean()
    loss = F.mse_loss(image, given)
    loss += kl
    return loss
