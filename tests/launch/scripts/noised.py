"""Diffusion: the sampler draws numbers of numpy, the batch is scaled and noised, bad gradients are changed to zero."""

from collections.abc import Iterator

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.manual_seed(0)


class Images(Dataset[Tensor]):
    def __init__(self) -> None:
        self.images = torch.rand(32, 6) * 255
        self.images[13, 4] = torch.nan

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        order = numpy.arange(32)
        while True:
            numpy.random.RandomState(3).shuffle(order)
            yield from order


batches = iter(DataLoader(Images(), batch_size=4, sampler=Endless()))
model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(16):
    optimizer.zero_grad()
    for _ in range(2):
        images = next(batches) / 127.5 - 1
        noise = torch.randn_like(images)
        (model(images + noise) - noise).pow(2).mean().backward()
    for parameter in model.parameters():
        torch.nan_to_num(parameter.grad, nan=0.0, posinf=1e5, neginf=-1e5, out=parameter.grad)
    optimizer.step()
