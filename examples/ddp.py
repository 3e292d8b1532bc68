"""Two processes: one rank sees a bad batch, and both skip the step together.

Run it: torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nantrap


def main() -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0)

    applied = 0
    for step in range(8):
        inputs = torch.randn(16, 4)
        if step == 5 and rank == 1:
            inputs[3, 0] = float("inf")
        outcome = guard.attempt(lambda x: model(x).square().mean(), inputs)
        applied += outcome.applied

    guard.close()
    weights = [torch.zeros_like(model.module.weight) for _ in range(2)]
    dist.all_gather(weights, model.module.weight.detach())
    if rank == 0:
        print(f"applied {applied} of 8 steps; both ranks have the same weights: {torch.equal(*weights)}")
    dist.barrier()  # a rank that leaves early can end the other one's exit with an abort


torch.set_num_threads(1)
dist.init_process_group("gloo")
main()
# gloo's threads end with the last owner of the group, and DistributedDataParallel is one. A thread that is at work when
# Python ends can abort the process, with or without nantrap.
gc.collect()
dist.destroy_process_group()
