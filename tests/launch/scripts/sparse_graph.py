"""A graph network over a sparse adjacency matrix, which the model is given in every step; one weight may be bad."""

import sys

import torch
from torch import nn


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x, adjacency):
        x = torch.relu(torch.sparse.mm(adjacency, self.first(x)))
        return torch.sparse.mm(adjacency, self.second(nn.functional.dropout(x, 0.5)))


def main():
    torch.manual_seed(0)
    places = torch.stack([torch.arange(40), (torch.arange(40) * 7 + 3) % 40])
    weights = torch.full((40,), 0.5)
    if "bad" in sys.argv:
        weights[11] = float("inf")
    adjacency = torch.sparse_coo_tensor(places, weights, (40, 40)).coalesce()
    x, y = torch.randn(40, 5), torch.randint(0, 3, (40,))
    model = Graph()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(x, adjacency), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f}")


if __name__ == "__main__":
    main()
