"""Two ranks train together; the second one ends with an error of its own before its sixth step.

With `two_lines` as the second argument the loop has a guard of its own.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nantrap

torch.set_num_threads(1)
dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[1]}/group",
    rank=int(os.environ["RANK"]),
    world_size=2,
    timeout=datetime.timedelta(seconds=60),
)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = nantrap.Guard(model, optimizer, run_dir=f"{sys.argv[1]}/run") if "two_lines" in sys.argv else None
for step in range(8):
    if step == 5 and dist.get_rank() == 1:
        os._exit(7)
    loss = model(torch.randn(8, 4)).square().mean()
    if guard is not None:
        guard.backward(loss)
        guard.step()
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
