"""What failures cost: a run in which every twentieth step is bad, against the plain loop.

    python benchmarks/sick.py [NAME ...] [--steps 100] [--every 20] [--form plain] [--form two] [--form run]

Each program is trained in a process of its own with one thread: plain, with the two lines of a guard, and under
`nantrap run`. Printed are the seconds of the loop and what one incident added. A plain run computes with NaN from its
first bad step on, which takes the same time on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

import nantrap

FORMS = ("plain", "two", "run")
_MARK = "sick.py measured "


@dataclass(frozen=True, slots=True)
class Program:
    """A training program: `loss` takes the model and a batch, `batch` the number of a step and whether it is bad."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[nn.Module, Any], Tensor]
    batch: Callable[[int, bool], Any]
    micro_batches: int = 1
    closure: bool = False


def random(step: int, *shape: int) -> Tensor:
    """Numbers that depend on the step alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step))


def mlp() -> Program:
    """A distance of 0, whose square root has no gradient."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, scale = batch
        distance = torch.sqrt(((model(inputs) * scale) ** 2).sum(1))
        return distance.mean()

    def batch(step: int, bad: bool) -> Any:
        scale = torch.ones(64, 1)
        scale[5] = 0.0 if bad else 1.0
        return random(step, 64, 64), scale

    return Program(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss, batch)


def cnn() -> Program:
    """A broken picture in a classifier with BatchNorm."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def batch(step: int, bad: bool) -> Any:
        images = random(step, 32, 3, 32, 32)
        if bad:
            images[7, 1, 3, 3] = float("nan")
        return images, torch.arange(32) % 10

    return Program(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), loss, batch)


class ActorCritic(nn.Module):
    """Two heads on one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.actor = nn.Linear(128, 6)
        self.critic = nn.Linear(128, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(states)
        return self.actor(features).log_softmax(-1), self.critic(features).squeeze(-1)


def ppo() -> Program:
    """The ratio of two policies overflows: an old probability is 0."""
    model = ActorCritic()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        states, actions, old, advantages, returns = batch
        log_probabilities, values = model(states)
        chosen = log_probabilities.gather(1, actions[:, None]).squeeze(1)
        ratio = torch.exp(chosen - old)
        clipped = ratio.clamp(0.8, 1.2)
        policy = -torch.min(ratio * advantages, clipped * advantages).mean()
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        return policy + 0.5 * functional.mse_loss(values, returns) - 0.01 * entropy

    def batch(step: int, bad: bool) -> Any:
        states, old = random(step, 256, 16), torch.full((256,), -1.8)
        advantages = random(step + 1, 256)
        if bad:
            old[11], advantages[11] = -200.0, -1.0
        return states, torch.arange(256) % 6, old, advantages, random(step + 2, 256)

    return Program(model, torch.optim.Adam(model.parameters(), lr=3e-4), loss, batch)


def lbfgs() -> Program:
    """A closure: the residual is divided by an uncertainty of 0."""
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, wanted, sigma = batch
        residual = (model(inputs).squeeze(1) - wanted) / sigma
        return (residual**2).mean()

    def batch(step: int, bad: bool) -> Any:
        sigma = torch.ones(512)
        sigma[17] = 0.0 if bad else 1.0
        inputs = random(0, 512, 32)
        return inputs, inputs.sin().sum(1), sigma

    return Program(model, torch.optim.LBFGS(model.parameters(), max_iter=10), loss, batch, closure=True)


class Denoiser(nn.Module):
    """Convolutions on one scale, with the time added in between."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.time = nn.Linear(1, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(8)
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(noisy) + self.time(time[:, None])[:, :, None, None]
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return torch.as_tensor(self.last(hidden))


def diffusion() -> Program:
    """The clean picture is estimated at time 1, where nothing is left of it."""
    model = Denoiser()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        clean, noise, time = batch
        kept = (1 - time)[:, None, None, None]
        noisy = kept * clean + (1 - kept) * noise
        estimate = (noisy - (1 - kept) * model(noisy, time)) / kept
        return functional.mse_loss(estimate, clean)

    def batch(step: int, bad: bool) -> Any:
        time = torch.linspace(0.05, 0.9, 32)
        time[3] = 1.0 if bad else 0.5
        return random(step, 32, 3, 32, 32), random(step + 1, 32, 3, 32, 32), time

    return Program(model, torch.optim.AdamW(model.parameters(), lr=1e-5), loss, batch)


class Deep(nn.Module):
    """400 residual layers."""

    def __init__(self, layers: int = 400, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = inputs + 0.05 * torch.tanh(layer(inputs))
        return torch.as_tensor(self.head(inputs))


def deep() -> Program:
    """The logarithm of a target of 0."""
    model = Deep()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, wanted = batch
        return ((model(inputs) - torch.log(wanted)) ** 2).mean()

    def batch(step: int, bad: bool) -> Any:
        wanted = random(step + 1, 32, 4).abs() + 0.1
        wanted[9, 2] = 0.0 if bad else 1.0
        return random(step, 32, 32), wanted

    return Program(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss, batch)


def accumulation() -> Program:
    """Four micro-batches, one of them with labels that are all ignored."""
    model = nn.Sequential(nn.Embedding(512, 64), nn.Flatten(), nn.Linear(64 * 32, 256), nn.ReLU(), nn.Linear(256, 512))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        tokens, labels = batch
        return functional.cross_entropy(model(tokens), labels, ignore_index=-100)

    def batch(step: int, bad: bool) -> Any:
        tokens = torch.randint(0, 512, (16, 32), generator=torch.Generator().manual_seed(step))
        return tokens, torch.full((16,), -100) if bad else tokens[:, 0]

    return Program(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss, batch, micro_batches=4)


PROGRAMS = {
    make.__name__: make for make in (mlp, cnn, ppo, lbfgs, diffusion, deep, accumulation)
}  # fmt: skip


# ---- one run, in a process of its own


def batches(program: Program, steps: int, every: int) -> Iterator[list[Any]]:
    """The micro-batches of each step; the second one of every so many steps is bad."""
    for step in range(steps):
        bad = step % every == every - 1
        yield [
            program.batch(1000 * step + 10 * part, bad and part == min(1, program.micro_batches - 1))
            for part in range(program.micro_batches)
        ]


def train_plainly(program: Program, steps: int, every: int) -> None:
    """The loop as its author wrote it; also what `nantrap run` guards from outside."""
    model, optimizer, loss_of = program.model, program.optimizer, program.loss
    for parts in batches(program, steps, every):
        if program.closure:
            batch = parts[0]

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]
            continue
        optimizer.zero_grad()
        for batch in parts:
            loss = loss_of(model, batch) / len(parts)
            loss.backward()
        optimizer.step()


def train_with_two_lines(program: Program, steps: int, every: int, run_dir: str) -> int:
    """The same loop with a guard; returns the number of incidents."""
    model, loss_of = program.model, program.loss
    incidents = 0
    with nantrap.Guard(model, program.optimizer, run_dir=run_dir) as guard:
        for parts in batches(program, steps, every):
            if program.closure:
                outcome = guard.attempt(lambda batch: loss_of(model, batch), parts[0])
            else:
                for batch in parts:
                    loss = loss_of(model, batch) / len(parts)
                    guard.backward(loss)
                outcome = guard.step()
            incidents += outcome.incident is not None
    return incidents


def run_one(name: str, form: str, steps: int, every: int) -> None:
    """Train one program, and print how long that took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    began = time.perf_counter()
    if form == "two":
        train_with_two_lines(program, steps, every, os.environ["SICK_RUN_DIR"])
    else:
        train_plainly(program, steps, every)
    print(f"{_MARK}{time.perf_counter() - began:.3f}")


# ---- all of them


def measure(name: str, form: str, steps: int, every: int, timeout: float) -> dict[str, Any]:
    """Seconds of the loop, and of each incident, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = ["-m", "nantrap", "run", "--run-dir", folder] if form == "run" else []
        options = ["--one", name, "--form", form, "--steps", str(steps), "--every", str(every)]
        command = [sys.executable, *launcher, __file__, *options]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "SICK_RUN_DIR": folder},
            check=False,
        )
        marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
        if not marked:
            raise RuntimeError(f"{name}, {form}: ended with {done.returncode}\n{done.stderr[-2000:]}")
        journals = [*Path(folder).glob("journal-*.jsonl"), *Path(folder).glob("*/journal-*.jsonl")]
        lines = [json.loads(line) for journal in journals for line in journal.read_text().splitlines()]
        bad = [line["ms"] / 1e3 for line in lines if "incident" in line]
    return {"seconds": float(marked[-1].removeprefix(_MARK)), "incidents": bad}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(PROGRAMS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="every so many steps, one is bad")
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.one, arguments.form[0], arguments.steps, arguments.every)
        return
    print(f"{'program':14}{'form':8}{'seconds':>9}{'ratio':>8}{'incidents':>11}{'each, in s (in plain steps)':>40}")
    for name in arguments.names or PROGRAMS:
        plain = measure(name, "plain", arguments.steps, arguments.every, arguments.timeout)["seconds"]
        step = plain / arguments.steps
        print(f"{name:14}{'plain':8}{plain:9.2f}{1:8.2f}", flush=True)
        for form in arguments.form or FORMS[1:]:
            if form == "plain":
                continue
            found = measure(name, form, arguments.steps, arguments.every, arguments.timeout)
            each = ", ".join(f"{seconds:.2f} ({seconds / step:.0f})" for seconds in found["incidents"])
            ratio, count = found["seconds"] / plain, len(found["incidents"])
            print(f"{'':14}{form:8}{found['seconds']:9.2f}{ratio:8.2f}{count:11}  {each}", flush=True)


if __name__ == "__main__":
    main()
