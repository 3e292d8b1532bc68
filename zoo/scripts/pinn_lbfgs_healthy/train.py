"""Physics-informed network for u'' = -pi^2 sin(pi x) with L-BFGS and a strong Wolfe line search."""
import argparse
import json
import math

import torch
import torch.nn as nn


class PINN(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


class Residual(nn.Module):
    """Adaptive weight of the boundary term; keeps the best loss seen, starting from infinity."""

    def __init__(self):
        super().__init__()
        self.register_buffer("best", torch.tensor(float("inf")))

    def forward(self, model, x, boundary):
        u = model(x)
        residual = derivative(derivative(u, x), x) + math.pi ** 2 * torch.sin(math.pi * x)
        loss = residual.square().mean() + 20.0 * model(boundary).square().mean()
        self.best.copy_(torch.minimum(self.best, loss.detach()))
        return loss


@torch.no_grad()
def relative_error(model):
    x = torch.linspace(0, 1, 101).unsqueeze(1)
    exact = torch.sin(math.pi * x)
    return ((model(x) - exact).norm() / exact.norm()).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=8)
    ap.add_argument("--points", type=int, default=48)
    ap.add_argument("--history", type=int, default=20)
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.linspace(0, 1, args.points).unsqueeze(1).requires_grad_(True)
    boundary = torch.tensor([[0.0], [1.0]])
    model, criterion = PINN(), Residual()
    opt = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=10, history_size=args.history,
                            line_search_fn="strong_wolfe")
    log = []
    for it in range(args.iterations):
        def closure():
            opt.zero_grad()
            loss = criterion(model, x, boundary)
            loss.backward()
            return loss
        loss = opt.step(closure)
        log.append({"it": it, "loss": loss.item(), "best": criterion.best.item(), "error": relative_error(model)})
        print(log[-1])
    with open("pinn.json", "w") as f:
        json.dump(log, f)
    torch.save(model.state_dict(), "pinn.pt")


if __name__ == "__main__":
    main()
