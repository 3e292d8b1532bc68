"""A GAN in one module. The discriminator's loss is bad by its data: the script raises, returns to a state and retries.

The generator's loss passes through the discriminator, whose gradients are cleared after that; once it is bad too.
"""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

torch.manual_seed(0)


class Networks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(4, 6)
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


class BadLoss(Exception):
    pass


points = torch.randn(32, 6)
points[21, 2] = torch.nan
networks = Networks()
d_optimizer = torch.optim.Adam(networks.discriminator.parameters(), lr=1e-3)
g_optimizer = torch.optim.Adam(networks.generator.parameters(), lr=1e-3)
kept = copy.deepcopy(networks.state_dict())
steps = 0


def train(real: Tensor) -> None:
    global kept, steps
    fake = networks.generator(torch.randn(len(real), 4))
    d_optimizer.zero_grad()
    d_loss = torch.relu(1 + networks.discriminator(fake.detach())).mean()
    d_loss = d_loss + torch.relu(1 - networks.discriminator(real)).mean()
    d_loss.backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    scores = networks.discriminator(fake)
    g_loss = -scores.mean() if steps != 5 else -(scores - scores.min()).sqrt().log().mean()
    g_loss.backward()
    g_optimizer.step()
    steps += 1
    if d_loss.isnan():
        networks.load_state_dict(kept)
        raise BadLoss
    kept = copy.deepcopy(networks.state_dict())


for _ in range(2):
    for batch in DataLoader(points, batch_size=8):  # type: ignore[arg-type]
        try:
            train(batch)
        except BadLoss:
            print("once more from the last good state")
