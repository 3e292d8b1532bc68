"""A storm over loops that keep autograd graphs alive from one optimizer step to the next, under `nantrap run`.

A refused step restores buffers and weights while the graph of another network still holds them, so this is where a
guard can break a program that is right. Each run draws a loop and its faults. It must hold:

    nothing       is non-finite at the end: parameters, buffers, optimizer state
    no exception  which the program does not raise without the guard
    no trace      of a diagnosis: a run ends with the same bits if it only contains
    bit-identity  of the same loop without a fault

    python benchmarks/held_graphs.py                     about 200 faults
    python benchmarks/held_graphs.py --faults 10000 --diagnose-every 16 --results FILE
    python benchmarks/held_graphs.py --loop gan --seed 7

With `--results` a line is written after each run, and the same command goes on behind the last one. A run that takes
longer than `--limit` ends the storm, with the stack of every thread.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import math
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

KINDS = ("nan", "inf", "huge", "loss", "gradient", "activation", "half")
"""What a fault is: a value of the batch, the loss times NaN, a gradient, an activation, only the backward pass."""


class Weather:
    """The faults of one run: at most one in a step, at a place that the loop offers."""

    def __init__(self, days: dict[int, str]) -> None:
        self.days = days
        self.step = -1
        self.done = 0

    def today(self, *kinds: str) -> str:
        """The fault of this step if it is of one of these kinds; it happens once."""
        kind = self.days.get(self.step, "")
        if kind not in kinds:
            return ""
        del self.days[self.step]
        self.done += 1
        return kind

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of the steps."""
        for self.step in range(count):
            yield self.step

    def batch(self, *shape: int) -> Tensor:
        """A batch, with a bad value in one place."""
        x = torch.randn(*shape)
        kind = self.today("nan", "inf", "huge")
        if kind:
            x.view(-1)[3] = {"nan": math.nan, "inf": math.inf, "huge": 1e25}[kind]
        return x

    def loss(self, loss: Tensor) -> Tensor:
        """A loss, which may become bad, or whose backward pass may."""
        kind = self.today("loss", "gradient", "half")
        if kind == "loss":
            return loss * math.nan
        if kind == "gradient" and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * math.inf)
        if kind == "half":
            return loss + (loss - loss.detach()).abs().sqrt()  # a value of 0, with an infinite slope
        return loss

    def inside(self, x: Tensor) -> Tensor:
        """An activation, which may become bad."""
        return x.log() if self.today("activation") else x


class Net(nn.Module):
    """Linear, a norm with running statistics, a statistic that the forward pass writes in place, a head."""

    def __init__(self, weather: Weather, inputs: int, outputs: int, *, spectral: bool = False) -> None:
        super().__init__()
        self.weather = weather
        self.body = nn.Linear(inputs, 12)
        self.norm = nn.BatchNorm1d(12)
        self.register_buffer("scale", torch.ones(12))
        self.head = nn.Linear(12, outputs)
        if spectral:
            self.head = nn.utils.parametrizations.spectral_norm(self.head)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.norm(self.body(x)), 0.2)
        if self.training and not torch.is_inference_mode_enabled():
            with torch.no_grad():
                # in place, as `momentum` of many layers; of its own copy, since an earlier graph may hold it
                self.scale = self.scale * 0.99 + 0.01 * h.detach().abs().mean(0)
        return self.head(self.weather.inside(h / (self.scale + 0.1)))


Modules = list[nn.Module]
Ended = tuple[Modules, list[torch.optim.Optimizer]]


def gan(weather: Weather, steps: int) -> Ended:
    """The generator's graph is made before the discriminator's step, and run backward after it."""
    G, D = Net(weather, 4, 6), Net(weather, 6, 1, spectral=True)
    of_d, of_g = torch.optim.Adam(D.parameters(), 2e-3), torch.optim.Adam(G.parameters(), 2e-3)
    for _ in weather.steps(steps):
        D.zero_grad()
        F.softplus(-D(weather.batch(8, 6))).mean().backward()
        fake = G(weather.batch(8, 4))
        weather.loss(F.softplus(D(fake.detach())).mean()).backward()
        of_d.step()
        G.zero_grad()
        weather.loss(F.softplus(-D(fake)).mean()).backward()
        of_g.step()
    return [G, D], [of_d, of_g]


def gradient_penalty(weather: Weather, steps: int) -> Ended:
    """WGAN-GP: the critic's loss holds a gradient; three steps of the critic for one sample of the generator."""
    G, D = Net(weather, 4, 6), Net(weather, 6, 1)
    of_d, of_g = torch.optim.RMSprop(D.parameters(), 1e-3), torch.optim.Adam(G.parameters(), 2e-3)
    for _ in weather.steps(steps):
        fake = G(torch.randn(8, 4))
        for _ in range(3):
            of_d.zero_grad()
            mixed = (torch.rand(8, 1) * weather.batch(8, 6) + fake.detach()).requires_grad_()
            (slope,) = torch.autograd.grad(D(mixed).sum(), mixed, create_graph=True)
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            weather.loss(D(fake.detach()).mean() + 10 * penalty).backward()
            of_d.step()
        of_g.zero_grad()
        weather.loss(-D(fake).mean()).backward()
        of_g.step()
    return [G, D], [of_d, of_g]


def rollout(weather: Weather, steps: int) -> Ended:
    """One encoding for several updates of two heads; its own graph runs backward each time, its step comes last."""
    encoder, actor, critic = Net(weather, 6, 8), Net(weather, 8, 3), nn.Linear(8, 1)
    heads = torch.optim.SGD([*actor.parameters(), *critic.parameters()], 0.02, momentum=0.9)
    below = torch.optim.AdamW(encoder.parameters(), 1e-3)
    for _ in weather.steps(steps):
        below.zero_grad()
        seen = encoder(weather.batch(8, 6))
        rewards = torch.randn(8)
        for _ in range(3):
            heads.zero_grad()
            value = critic(seen).squeeze(1)
            chosen = actor(seen).log_softmax(1)[:, 0]
            loss = -(chosen * (rewards - value.detach())).mean() + F.mse_loss(value, rewards)
            weather.loss(loss).backward(retain_graph=True)
            nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
            heads.step()
        below.step()
    return [encoder, actor, critic], [heads, below]


def truncated(weather: Weather, steps: int) -> Ended:
    """Truncated BPTT: the graph of two chunks is kept, and each chunk adds its gradients."""
    cell, out = nn.GRUCell(4, 8), Net(weather, 8, 2)
    optimizer = torch.optim.AdamW([*cell.parameters(), *out.parameters()], 2e-3)
    hidden = torch.zeros(8, 8)
    for _ in weather.steps(steps):
        optimizer.zero_grad()
        for _ in range(2):
            for _ in range(2):
                hidden = cell(weather.batch(8, 4), hidden)
            weather.loss(out(hidden).pow(2).mean()).backward(retain_graph=True)
        nn.utils.clip_grad_norm_(out.parameters(), 1.0)
        optimizer.step()
        hidden = hidden.detach().nan_to_num(0.0, 0.0, 0.0)
    return [cell, out], [optimizer]


def two_optimizers(weather: Weather, steps: int) -> Ended:
    """One backward pass, two steps; the second loss is computed between them from the graph of the first."""
    body, head = Net(weather, 6, 6), Net(weather, 6, 1)
    of_body, of_head = torch.optim.SGD(body.parameters(), 0.01), torch.optim.Adam(head.parameters(), 2e-3)
    for _ in weather.steps(steps):
        of_body.zero_grad()
        of_head.zero_grad()
        features = body(weather.batch(8, 6))
        weather.loss(head(features.detach()).pow(2).mean()).backward()
        of_head.step()
        of_head.zero_grad()
        weather.loss(head(features).abs().mean()).backward()
        of_body.step()
    return [body, head], [of_body, of_head]


def closures(weather: Weather, steps: int) -> Ended:
    """An encoder whose graph outlives the steps of a closure: SGD evaluates it once, LBFGS several times."""
    encoder, head, last = Net(weather, 6, 4), Net(weather, 4, 1), nn.Linear(4, 1)
    of_head = torch.optim.SGD(head.parameters(), 0.01)
    of_last = torch.optim.LBFGS(last.parameters(), lr=0.1, max_iter=3)
    below = torch.optim.Adam(encoder.parameters(), 1e-3)
    for _ in weather.steps(steps):
        below.zero_grad()
        seen = encoder(weather.batch(8, 6))

        def once(seen: Tensor = seen) -> Tensor:
            of_head.zero_grad()
            loss = weather.loss(head(seen).pow(2).mean())
            loss.backward(retain_graph=True)
            return loss

        def often(seen: Tensor = seen) -> Tensor:
            of_last.zero_grad()
            loss = (last(seen.detach()) - 1).pow(2).mean()
            loss.backward()
            return loss

        of_head.step(once)
        of_last.step(often)
        below.step()
    return [encoder, head, last], [of_head, of_last, below]


def meta(weather: Weather, steps: int) -> Ended:
    """Two inner updates with a graph through them, one outer step; the encoder's graph is kept for a second loss."""
    encoder, head = Net(weather, 6, 4), nn.Linear(4, 1)
    outer, slow = torch.optim.Adam(head.parameters(), 1e-3), torch.optim.SGD(encoder.parameters(), 0.01)
    for _ in weather.steps(steps):
        outer.zero_grad()
        slow.zero_grad()
        seen = encoder(weather.batch(8, 6))
        weight, bias = head.weight, head.bias
        for _ in range(2):
            inner = F.linear(seen, weight, bias).pow(2).mean()
            gradients = torch.autograd.grad(inner, (weight, bias), create_graph=True)
            weight, bias = (p - 0.1 * g for p, g in zip((weight, bias), gradients, strict=True))
        weather.loss(F.linear(seen.detach(), weight.detach(), bias).abs().mean()).backward(retain_graph=True)
        outer.step()
        weather.loss(seen.pow(2).mean()).backward()
        slow.step()
    return [encoder, head], [outer, slow]


def teacher(weather: Weather, steps: int) -> Ended:
    """A teacher that follows its student; the student's graph is used before and after the step of a projection."""
    student, projection, follower = Net(weather, 6, 4), Net(weather, 4, 4), Net(weather, 6, 4)
    of_student, of_projection = torch.optim.AdamW(student.parameters()), torch.optim.Adam(projection.parameters())
    for _ in weather.steps(steps):
        of_student.zero_grad()
        of_projection.zero_grad()
        x = weather.batch(8, 6)
        with torch.no_grad():
            wanted = follower(x)
        seen = student(x)
        weather.loss(F.mse_loss(projection(seen.detach()), wanted)).backward()
        of_projection.step()
        weather.loss(F.mse_loss(projection(seen), wanted)).backward()
        of_student.step()
        with torch.no_grad():
            for slow, quick in zip(follower.parameters(), student.parameters(), strict=True):
                slow.lerp_(quick, 0.05)
    return [student, projection, follower], [of_student, of_projection]


Loop = Callable[[Weather, int], Ended]
LOOPS: dict[str, Loop] = {
    each.__name__: each for each in (gan, gradient_penalty, rollout, truncated, two_optimizers, closures, meta, teacher)
}


def state_of(ended: Ended) -> list[Tensor]:
    """Everything that must stay finite."""
    modules, optimizers = ended
    held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    for optimizer in optimizers:
        held += [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, Tensor)]
    return [tensor.detach() for tensor in held]


def run(loop: Loop, seed: int, days: dict[int, str], steps: int) -> tuple[Ended | None, str, int]:
    """One run of a loop: how it ended, the exception that ended it in words, and how many faults happened."""
    torch.manual_seed(seed)
    weather = Weather(dict(days))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return loop(weather, steps), "", weather.done
    except Exception as error:
        return None, "".join(traceback.format_exception(error)[-3:]), weather.done


def differs(left: Ended, right: Ended) -> bool:
    """Whether two runs ended with other bits."""
    return not all(map(torch.equal, state_of(left), state_of(right)))


def storm(name: str, seed: int, folder: Path, *, steps: int, diagnose: bool) -> tuple[int, list[str]]:
    """A healthy run and one with faults, each with and without the guard. Returns the faults, and what is wrong."""
    chance = random.Random(seed)
    days = {step: chance.choice(KINDS) for step in range(1, steps) if chance.random() < 0.4}
    settings = RunSettings(run_dir=str(folder / f"{name}-{seed}"), quiet=True, diagnose="full" if diagnose else "off")
    wrong = []
    calm, _, _ = run(LOOPS[name], seed, {}, steps)
    with attached(settings):
        guarded, error, _ = run(LOOPS[name], seed, {}, steps)
    if guarded is None or calm is None or differs(calm, guarded):
        wrong.append(f"{name}, seed {seed}: a healthy run differs: {error}")
    _, raised, _ = run(LOOPS[name], seed, days, steps)
    with attached(settings) as attachment:
        ended, error, faults = run(LOOPS[name], seed, days, steps)
        stopped = [loop.stopped for loop in attachment.registry if loop.stopped is not None]
    if stopped:
        return faults, wrong  # the ladder ended: too many in a row, which is what was asked for
    if diagnose and ended is not None:
        with attached(replace(settings, diagnose="off")):
            contained, _, _ = run(LOOPS[name], seed, days, steps)
        if contained is None or differs(ended, contained):
            wrong.append(f"{name}, seed {seed}: the diagnosis changes the run")
    if error and not raised:
        wrong.append(f"{name}, seed {seed}: {error}")
    if ended is not None and not all(bool(t.isfinite().all()) for t in state_of(ended) if t.is_floating_point()):
        wrong.append(f"{name}, seed {seed}: non-finite values are left behind")
    return faults, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="go on until so many faults have happened")
    parser.add_argument("--loop", choices=[*LOOPS], action="append", help="only this loop; may be given again")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--steps", type=int, default=10, help="of each run")
    parser.add_argument("--diagnose-every", type=int, default=4, help="diagnose in every n-th run, contain in all")
    parser.add_argument("--results", type=Path, help="a file with a line for each run; what it has is not run again")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    done = [json.loads(line) for line in args.results.open()] if args.results and args.results.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(itertools.cycle(args.loop or LOOPS)):
            if number < len(done):
                continue
            if sum(each["faults"] for each in done) >= args.faults:
                break
            faulthandler.dump_traceback_later(args.limit, exit=True)
            began = time.perf_counter()
            diagnose = number // len(LOOPS) % args.diagnose_every == 0
            faults, wrong = storm(name, args.seed + number, Path(folder), steps=args.steps, diagnose=diagnose)
            done.append({"faults": faults, "wrong": wrong, "seconds": round(time.perf_counter() - began, 2)})
            if args.results:
                with args.results.open("a") as file:
                    print(json.dumps(done[-1]), file=file)
            if wrong and not args.json:
                print(*wrong, sep="\n", flush=True)
    faulthandler.cancel_dump_traceback_later()
    result: dict[str, Any] = {
        "faults": sum(each["faults"] for each in done),
        "runs": len(done),
        "wrong": [words for each in done for words in each["wrong"]],
        "seconds": round(sum(each["seconds"] for each in done)),
    }
    words = "{faults:,} faults in {runs:,} runs, {count} wrong, {seconds} s"
    print(json.dumps(result) if args.json else words.format(**result, count=len(result["wrong"])))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
