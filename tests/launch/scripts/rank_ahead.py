"""Two ranks call the model inside its wrapper, so that nothing is averaged. The first one is done before the second
begins."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
store = dist.FileStore(f"{sys.argv[1]}/group", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if rank == 1:
    store.wait(["first rank is done"], timedelta(seconds=60))
for _ in range(30):
    x = torch.randn(8, 4)
    loss = (model.module(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if rank == 0:
    store.set("first rank is done", "yes")
dist.destroy_process_group()
