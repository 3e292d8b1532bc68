"""Gradients averaged by hand. A step is dropped on all ranks when one of them has a bad gradient."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def rank_of(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    own = torch.Generator().manual_seed(rank)
    for step in range(12):
        x = torch.randn(6, 5, generator=own)
        distance = (model(x) * (0.0 if rank == 1 and step == 6 else 1.0)).square().sum(1).sqrt()
        optimizer.zero_grad()
        distance.mean().backward()
        ok = torch.tensor(float(all(p.grad.isfinite().all() for p in model.parameters())))
        dist.all_reduce(ok, op=dist.ReduceOp.MIN)
        if ok.item() == 0:
            continue
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_of, args=(sys.argv[1],), nprocs=2)
