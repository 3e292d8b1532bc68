"""Two ranks that average their gradients, started by torchrun or, with --spawn, by the script itself."""

import argparse
import datetime
import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(args):
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 6, generator=generator), torch.randn(32, 3, generator=generator)
    for index in args.bad:
        x[index, 1] = float("nan")
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=False)  # rank 0 has the even samples, rank 1 the odd ones
    torch.manual_seed(rank)
    inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    if args.dcp:
        save_sharded(inner, rank)
    result = {
        "finite": all(bool(value.isfinite().all()) for value in inner.state_dict().values()),
        "weights": [float(p.detach().double().sum()).hex() for p in inner.parameters()],
        "updates": scheduler.last_epoch,
    }
    with open(f"result-{rank}.json", "w") as file:
        json.dump(result, file)


def save_sharded(model, rank):
    """A good distributed checkpoint, and two while one weight of rank 1 is NaN."""
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id="good")
    kept = model[0].weight.detach().clone()
    if rank == 1:
        model[0].weight.data[0, 0] = float("nan")
    dcp.save({"model": model.state_dict()}, checkpoint_id="good")
    dcp.async_save({"model": model.state_dict()}, checkpoint_id="later").result()
    model[0].weight.data.copy_(kept)


def work(rank, args):
    begin(args, init_method=f"file://{os.getcwd()}/rendezvous", rank=rank, world_size=2)


def begin(args, **how):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120), **how)
    train(args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bad", type=int, nargs="*", default=[])
    parser.add_argument("--dcp", action="store_true")
    parser.add_argument("--spawn", action="store_true")
    args = parser.parse_args()
    if args.spawn:
        mp.spawn(work, (args,), nprocs=2)
        print("both are done")
    else:
        begin(args)
