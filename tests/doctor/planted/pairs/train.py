import torch
from losses import pair_loss
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x):
        return self.layers(x)


def train(model, loader, optimizer):
    for first, second in loader:
        optimizer.zero_grad(set_to_none=True)
        a, b = model(first), model(second)
        loss = pair_loss(a, b)
        loss.backward()
        optimizer.step()


def main():
    encoder = Encoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-4)
    train(DistributedDataParallel(encoder), torch.load("pairs.pt"), optimizer)


if __name__ == "__main__":
    main()
