"""Two ranks with a store. Rank 1 dies in the middle of a diagnosis; restarted, both continue from the last good step.

`dies.py FOLDER`, with RANK in the environment. TORCHELASTIC_RESTART_COUNT says how often the ranks were started before,
as `torchrun --max-restarts` does, under which this script runs as well.
"""

import datetime
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nantrap

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
BAD = 5


def main(folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # under torchrun too: its own store keeps gloo's addresses of the dead ranks, and a new rank may connect to them
    meeting = f"file://{folder}/rendezvous-{ATTEMPT}"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=RANK, world_size=2, timeout=datetime.timedelta(seconds=60)
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    store = nantrap.CheckpointStore(os.path.join(folder, "store"))
    guard = nantrap.Guard(model, optimizer, run_dir=os.path.join(folder, "run"), store=store, save_every=2)
    begun = guard.load("last_good").step if store.last_good() is not None else 0
    applied = []
    for step in range(begun, 8):
        calls: list[int] = []
        bad = ATTEMPT == 0 and step == BAD and RANK == 1
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * RANK + step))

        def loss(batch, calls=calls, bad=bad):
            calls.append(1)
            if bad and len(calls) == 2:  # a replay
                os._exit(9)
            return model(batch).square().mean() * (float("nan") if bad else 1.0)

        outcome = guard.attempt(loss, x)
        applied.append(outcome.step)
    guard.close()
    weights = [float(p.detach().double().sum()).hex() for p in model.parameters()]
    with open(os.path.join(folder, f"result-{RANK}.json"), "w") as file:
        json.dump({"begun": begun, "applied": applied, "weights": weights, "attempt": ATTEMPT}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
