"""A storm over two ranks under `nantrap run`: DistributedDataParallel and FSDP2, faults on one rank or on both.

Both ranks stay in one process group for the whole storm. Each run draws a loop and its faults. It must hold:

    nothing       is non-finite at the end on any rank: parameters, buffers, optimizer state
    no exception  which the program does not raise without the guard
    equal ranks   bit for bit, where they hold the same model
    bit-identity  of the same loop without a fault
    no wait       longer than the timeout of the group

    python benchmarks/rank_storm.py                                        about 100 faults
    python benchmarks/rank_storm.py --faults 2000 --diagnose-every 16 --results FILE

With `--results` a line is written after each run, and the same command goes on behind the last one.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import itertools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from held_graphs import KINDS, Ended, Loop, Net, Weather, run, state_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

_RANKS = 2


def classifier(weather: Weather, steps: int) -> Ended:
    """One wrapped model, clipped, with a schedule."""
    model = DistributedDataParallel(Net(weather, 6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in weather.steps(steps):
        optimizer.zero_grad()
        weather.loss(F.cross_entropy(model(weather.batch(8, 6)), torch.arange(8) % 3)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return [model], [optimizer]


def accumulation(weather: Weather, steps: int) -> Ended:
    """Two micro-batches, the first without averaging."""
    model = DistributedDataParallel(Net(weather, 6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    for _ in weather.steps(steps):
        optimizer.zero_grad()
        for part in range(2):
            with model.no_sync() if part == 0 else contextlib.nullcontext():
                weather.loss(model(weather.batch(8, 6)).pow(2).mean()).backward()
        optimizer.step()
    return [model], [optimizer]


def adversaries(weather: Weather, steps: int) -> Ended:
    """A generator and a critic, both wrapped; the generator's graph is held over the critic's step."""
    G = DistributedDataParallel(Net(weather, 4, 6), broadcast_buffers=False)
    D = DistributedDataParallel(Net(weather, 6, 1), broadcast_buffers=False)
    of_d, of_g = torch.optim.Adam(D.parameters(), 2e-3), torch.optim.Adam(G.parameters(), 2e-3)
    for _ in weather.steps(steps):
        fake = G(weather.batch(8, 4))
        of_d.zero_grad()
        weather.loss(F.softplus(-D(weather.batch(8, 6))).mean()).backward()
        weather.loss(F.softplus(D(fake.detach())).mean()).backward()
        of_d.step()
        of_g.zero_grad()
        weather.loss(F.softplus(-D(fake)).mean()).backward()
        of_g.step()
    return [G, D], [of_d, of_g]


def _sharded(weather: Weather) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), Deep(weather), nn.Linear(12, 3))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


class Deep(nn.Module):
    """A hidden layer whose activation may become bad."""

    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self.weather = weather
        self.layer = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weather.inside(F.gelu(self.layer(x)))


def sharded(weather: Weather, steps: int) -> Ended:
    """FSDP2, clipped."""
    model = _sharded(weather)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in weather.steps(steps):
        optimizer.zero_grad()
        weather.loss(F.cross_entropy(model(weather.batch(8, 6)), torch.arange(8) % 3)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [model], [optimizer]


def sharded_accumulation(weather: Weather, steps: int) -> Ended:
    """FSDP2 with two micro-batches, the first without a reduction."""
    model = _sharded(weather)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    for _ in weather.steps(steps):
        optimizer.zero_grad()
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            weather.loss(model(weather.batch(8, 6)).pow(2).mean()).backward()
        optimizer.step()
    return [model], [optimizer]


LOOPS: dict[str, Loop] = {
    each.__name__: each for each in (classifier, sharded, accumulation, sharded_accumulation, adversaries)
}


def local_state(ended: Ended) -> list[torch.Tensor]:
    """Everything that must stay finite, as far as this rank holds it."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in state_of(ended)]


def storm(name: str, seed: int, folder: Path, *, steps: int, diagnose: bool) -> tuple[int, list[str]]:
    """Healthy and with faults, each with and without the guard. Returns the faults of this rank, and what is wrong."""
    chance = random.Random(seed)
    drawn = {
        step: (chance.choice(KINDS), chance.choice((0, 1, 2))) for step in range(1, steps) if chance.random() < 0.4
    }
    days = {step: kind for step, (kind, where) in drawn.items() if where in (dist.get_rank(), _RANKS)}
    settings = RunSettings(run_dir=str(folder / f"{name}-{seed}"), quiet=True, diagnose="full" if diagnose else "off")
    wrong = []
    calm, _, _ = run(LOOPS[name], seed, {}, steps)
    with attached(settings):
        guarded, error, _ = run(LOOPS[name], seed, {}, steps)
    if guarded is None or calm is None or not all(map(torch.equal, local_state(calm), local_state(guarded))):
        wrong.append(f"{name}, seed {seed}: a healthy run differs: {error}")
    _, raised, _ = run(LOOPS[name], seed, days, steps)
    with attached(settings) as attachment:
        ended, error, faults = run(LOOPS[name], seed, days, steps)
        stopped = any(loop.stopped is not None for loop in attachment.registry)
    if stopped:
        return faults, wrong  # the ladder ended: too many in a row, which is what was asked for
    if error and not raised:
        wrong.append(f"{name}, seed {seed}: {error}")
    if ended is not None:
        held = local_state(ended)
        if not all(bool(t.isfinite().all()) for t in held if t.is_floating_point()):
            wrong.append(f"{name}, seed {seed}: non-finite values are left behind on rank {dist.get_rank()}")
        if not any(isinstance(p, DTensor) for p in ended[0][0].parameters()):
            parameters = [p.detach() for module in ended[0] for p in module.parameters()]
            sums: list[Any] = [None] * _RANKS
            dist.all_gather_object(sums, [p.double().sum().item() for p in parameters])
            if sums[0] != sums[1]:
                wrong.append(f"{name}, seed {seed}: the ranks differ")
    return faults, wrong


def work(rank: int, args: argparse.Namespace, done: list[dict[str, Any]], folder: str) -> None:
    """The storm on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=_RANKS,
        timeout=datetime.timedelta(seconds=args.limit),
    )
    faults = sum(each["faults"] for each in done)
    for number, name in enumerate(itertools.cycle(args.loop or LOOPS)):
        if number < len(done):
            continue
        if faults >= args.faults:
            break
        faulthandler.dump_traceback_later(2 * args.limit, exit=True)
        began = time.perf_counter()
        diagnose = number // len(LOOPS) % args.diagnose_every == 0
        own, wrong = storm(name, args.seed + number, Path(folder), steps=args.steps, diagnose=diagnose)
        told: list[Any] = [None] * _RANKS
        dist.all_gather_object(told, (own, wrong))
        faults += sum(each for each, _ in told)
        if rank == 0:
            words = [text for _, more in told for text in more]
            print(*words, sep="\n", end="\n" if words else "", flush=True)
            line = {
                "faults": sum(each for each, _ in told),
                "wrong": words,
                "seconds": round(time.perf_counter() - began, 2),
            }
            with args.results.open("a") as file:
                print(json.dumps(line), file=file)
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    os._exit(0)  # where gloo's threads end only with Python, it can abort the process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="go on until so many faults have happened")
    parser.add_argument("--loop", choices=[*LOOPS], action="append", help="only this loop; may be given again")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--steps", type=int, default=10, help="of each run")
    parser.add_argument("--diagnose-every", type=int, default=4, help="diagnose in every n-th run, contain in all")
    parser.add_argument("--limit", type=float, default=120, help="the group's timeout in seconds")
    parser.add_argument("--results", type=Path, help="a file with a line for each run; what it has is not run again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.results = args.results or Path(folder, "results")
        done = [json.loads(line) for line in args.results.open()] if args.results.exists() else []
        mp.spawn(work, args=(args, done, folder), nprocs=_RANKS)
        done = [json.loads(line) for line in args.results.open()]
    wrong = [words for each in done for words in each["wrong"]]
    faults, seconds = (sum(each[name] for each in done) for name in ("faults", "seconds"))
    print(f"{faults:,} faults in {len(done):,} runs, {len(wrong)} wrong, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
