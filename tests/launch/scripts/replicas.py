"""Two ranks that are meant to hold one model, and what people forget about it, one model after the other."""

import datetime
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.name = type(self).__name__.lower()
        self.add_module(f"{self.name}_body", nn.Linear(6, 8))
        self.add_module(f"{self.name}_head", nn.Linear(8, 1))

    def forward(self, x):
        body, head = self.children()
        return head(torch.relu(body(x)))


def train(rank, net, call, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(11):
        optimizer.zero_grad()
        call(torch.randn(4, 6, generator=generator)).square().mean().backward()
        if net.name == "byhand":
            for name, parameter in net.named_parameters():
                if name != "byhand_head.bias":
                    dist.all_reduce(parameter.grad)
        optimizer.step()
        dist.barrier()


def make(kind):
    torch.manual_seed(0)
    return type(kind, (Net,), {})()


def work(rank):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.getcwd()}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=120),
    )
    right = make("Right")
    train(rank, right, DistributedDataParallel(right), right.parameters())
    ensemble = make("Ensemble")  # a model of its own on each rank
    train(rank, ensemble, ensemble, ensemble.parameters())
    bare = make("Bare")
    wrapped = DistributedDataParallel(bare)
    train(rank, bare, bare, wrapped.parameters())
    half, extra = make("Half"), nn.Linear(1, 1, bias=False)
    inner = DistributedDataParallel(half)
    train(rank, half, lambda x: extra(inner(x)), [*half.parameters(), *extra.parameters()])
    by_hand = make("ByHand")
    train(rank, by_hand, by_hand, by_hand.parameters())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
