"""How long a step takes on an accelerator, by the virtual clock of the simulated one: plain, guarded, by other means.

    python benchmarks/device.py [--tensors 10 1000] [--parameters 1e6 1e8] [--kernels 10 1000] [--picture FILE]
    python benchmarks/device.py --json > counted.jsonl; python benchmarks/device.py --counted counted.jsonl
    python benchmarks/device.py --long

Nothing is timed. `tests/device/clock.h` is the model of the machine: each launch costs the host 5 µs, a kernel takes
what its bytes and its matrix operations take on an A100, a blocking read waits until the queue is empty. Only shapes
are computed, so a model with ten billion parameters needs no memory. To the host's time each call that nantrap's own
Python code makes or receives adds `CALL_US`.

The model is a chain of layers `mixing @ (x @ weight)`. The number of rows of `x` is chosen so that the longest kernels
of a layer take what `--kernels` says, in µs. A combination whose weights alone take longer to read is left out.
Every loop makes the same steps with fused AdamW and clips at a norm of 1, by `clip_grad_norm_` or by the guard;
`unclipped` are a plain and a guarded loop that do not clip, so that the gradient norm is a cost of the guard.

`--long` makes 1,200 steps of one small model instead: with the check of the whole state, which is made once in 1,000.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from xml.sax.saxutils import escape

import torch
from torch import Tensor, nn

import nantrap

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]
from device import simulated  # noqa: E402

WARM = 12
"""Steps before it is counted: the guard reads its first eight at once."""
CALL_US = 0.3
"""Host time of each call that nantrap's own code makes or receives, Python's and C's alike; a generous assumption."""
CLIP = 1e-9
"""Where values are not computed, the host reads zeros as norms: so small a limit makes every loop clip in each step."""
FOLDER = os.path.dirname(nantrap.__file__) + os.sep
TENSORS = (10, 100, 1000, 5000)
PARAMETERS = (1e6, 1e8, 1e10)
KERNELS_US = (10.0, 100.0, 1e3, 1e4, 1e5)
BYTES_PER_US, FLOPS_PER_US = 1.5e6, 150e6  # as in clock.h
Step = Callable[[], object]


class Chain(nn.Module):
    """Layers `mixing @ (x @ weight)`; the mixing is the same matrix for all, and is not trained."""

    def __init__(self, tensors: int, width: int, rows: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False, device="sim") for _ in range(tensors))
        self.mixing = torch.empty(rows, rows, device="sim")

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.mixing @ layer(x)
        return x


@dataclass(frozen=True)
class Shape:
    """What is trained: how many tensors, how wide, on how many rows."""

    tensors: int
    parameters: float
    kernel_us: float

    @property
    def width(self) -> int:
        return max(1, round((self.parameters / self.tensors) ** 0.5))

    @property
    def rows(self) -> int:
        """The most rows whose longest kernel takes no longer than it should; 0 if even one row takes longer."""
        low, high = 0, 2**24
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._longest(middle) <= self.kernel_us else (low, middle - 1)
        return low

    def _longest(self, rows: int) -> float:
        width = self.width
        flops = 2.0 * rows * width * max(rows, width)
        moved = 4.0 * (2 * rows * width + max(rows, width) ** 2)
        return max(flops / FLOPS_PER_US, moved / BYTES_PER_US)


@dataclass(frozen=True)
class Row:
    """What was counted, per step.

    Attributes:
        loop: which one.
        step_us: its makespan.
        ratio: of it to that of the plain loop.
        kernels: launches.
        blocking_reads: how often the host waited until the queue was empty.
        device_us: what the device worked.
        calls: of nantrap's own code.
    """

    tensors: int
    parameters: float
    kernel_us: float
    loop: str
    step_us: float
    ratio: float
    kernels: float
    blocking_reads: float
    device_us: float
    calls: float


def contestants(shape: Shape, folder: str) -> dict[str, Callable[[ExitStack], Step]]:
    """Every way to train, each with its own model, made when it is asked for."""

    def parts() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
        model = Chain(shape.tensors, shape.width, shape.rows)
        return (
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
            torch.empty(shape.rows, shape.width, device="sim"),
        )

    def plain(_: ExitStack, *, read: bool = False, clip: bool = True) -> Step:
        model, optimizer, x = parts()

        def step() -> None:
            loss = model(x).square().mean()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            if read:
                loss.item()

        return step

    def anomaly(stack: ExitStack) -> Step:
        stack.enter_context(torch.autograd.set_detect_anomaly(True))
        return plain(stack)

    def hooks(stack: ExitStack) -> Step:
        handle = nn.modules.module.register_module_forward_hook(lambda module, given, out: _is_finite(out))
        stack.callback(handle.remove)
        return plain(stack)

    def guarded(stack: ExitStack, **options: Any) -> Step:
        model, optimizer, x = parts()
        options = {"max_grad_norm": CLIP, **options}
        guard = nantrap.Guard(model, optimizer, run_dir=tempfile.mkdtemp(dir=folder), quiet=True, **options)
        stack.callback(guard.close)
        return lambda: guard.attempt(lambda batch: model(batch).square().mean(), x)

    return {
        "plain": plain,
        "auto": guarded,
        "step": lambda stack: guarded(stack, policy=nantrap.Policy(sync="step")),
        "item": lambda stack: plain(stack, read=True),
        "hooks": hooks,
        "anomaly": anomaly,
        "plain, unclipped": lambda stack: plain(stack, clip=False),
        "auto, unclipped": lambda stack: guarded(stack, max_grad_norm=None),
    }


def _is_finite(out: Tensor) -> None:
    bool(torch.isfinite(out).all())  # a hook would raise here


@contextmanager
def python_counts() -> Iterator[list[int]]:
    """Let the virtual host pay for what nantrap's own code does in Python, and count its calls."""
    calls = [0]

    def pay(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(FOLDER):
            calls[0] += 1
            torch.ops.sim.spend(CALL_US)

    sys.setprofile(pay)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def count(make: Callable[[ExitStack], Step], steps: int, warm: int = WARM) -> tuple[simulated.Counts, int]:
    """What so many steps take, and how many calls nantrap's own code takes part in."""
    with ExitStack() as stack:
        step = make(stack)
        for _ in range(warm):
            step()
        with simulated.counted() as seen, python_counts() as calls:
            for _ in range(steps):
                step()
        return seen[0], calls[0]


def rows_of(shape: Shape, steps: int) -> Iterator[Row]:
    """All loops with one shape."""
    with tempfile.TemporaryDirectory() as folder:
        base: dict[str, float] = {}
        for name, make in contestants(shape, folder).items():
            seen, calls = count(make, steps, WARM if name.startswith(("auto", "step")) else 3)
            kind = "unclipped" if name.endswith("unclipped") else "clipped"
            base.setdefault(kind, seen.makespan_us)
            yield Row(
                shape.tensors, shape.parameters, shape.kernel_us, name, seen.makespan_us / steps,
                seen.makespan_us / base[kind], seen.kernels / steps, seen.blocking_reads / steps,
                (seen.device_us - seen.idle_us) / steps, calls / steps,
            )  # fmt: skip


LOOPS = {
    "auto": ('guarded, sync="auto"', "#1b7f4b"),
    "step": ('guarded, sync="step"', "#2b6cb0"),
    "item": ("loss.item() each step", "#8a8f98"),
    "hooks": ("isfinite hooks", "#c77d0a"),
    "anomaly": ("anomaly mode", "#b83232"),
    "auto, unclipped": ('sync="auto", nothing clips', "#7bc29a"),
}
"""What is compared with plain loops: name and colour."""


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a line for each shape, with the ratio of each loop to its plain one, as soon as it is counted."""
    yield (
        "| tensors | parameters | longest kernels | plain step | "
        + " | ".join(words for words, _ in LOOPS.values())
        + " |"
    )
    yield "| --- " * (4 + len(LOOPS)) + "|"
    for shape in dict.fromkeys((row.tensors, row.parameters, row.kernel_us) for row in rows):
        here = {row.loop: row for row in rows if (row.tensors, row.parameters, row.kernel_us) == shape}
        start = f"| {shape[0]:,} | {shape[1]:.0e} | {_time(shape[2])} | {_time(here['plain'].step_us)} | "
        yield start + " | ".join(f"{here[name].ratio:.4f}" for name in LOOPS) + " |"


def _time(us: float) -> str:
    return (
        f"{us:.3g} µs"
        if us < 1e3
        else f"{us / 1e3:.3g} ms"
        if us < 1e6
        else f"{us / 1e6:.0f} s"
        if us > 1e7
        else f"{us / 1e6:.3g} s"
    )


WIDE, HIGH, LEFT, BELOW = 760, 420, 70, 62
X_DECADES, Y_DECADES = (-1, 6), (-6, 1)


def picture(rows: Sequence[Row]) -> str:
    """SVG: how much longer a step is by each loop, over the time of a plain step; both axes are logarithmic."""

    def at(milliseconds: float, added: float) -> tuple[float, float]:
        across = (math.log10(milliseconds) - X_DECADES[0]) / (X_DECADES[1] - X_DECADES[0])
        up = (math.log10(max(added, 10.0 ** Y_DECADES[0])) - Y_DECADES[0]) / (Y_DECADES[1] - Y_DECADES[0])
        return LEFT + across * (WIDE - LEFT - 30), HIGH - BELOW - up * (HIGH - BELOW - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="white"/>',
    ]
    for decade in range(X_DECADES[0], X_DECADES[1] + 1):
        x, y = at(10.0**decade, 10.0 ** Y_DECADES[0])
        parts.append(f'<path d="M{x:.0f} 20V{y:.0f}" stroke="#e4e6ea"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="middle">{_time(10.0 ** (decade + 3))}</text>')
    for decade in range(Y_DECADES[0], Y_DECADES[1] + 1):
        x, y = at(10.0 ** X_DECADES[0], 10.0**decade)
        parts.append(f'<path d="M{x:.0f} {y:.0f}H{WIDE - 30}" stroke="#e4e6ea"/>')
        parts.append(f'<text x="{x - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{10.0 ** (decade + 2):g}%</text>')
    x, y = at(10.0 ** X_DECADES[0], 0.002)
    parts.append(f'<path d="M{x:.0f} {y:.1f}H{WIDE - 30}" stroke="#1b7f4b" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{WIDE - 24}" y="{y - 4:.0f}" text-anchor="end" fill="#1b7f4b">0.2%</text>')
    plain = {(row.tensors, row.parameters, row.kernel_us): row.step_us for row in rows if row.loop == "plain"}
    for name, (_, colour) in LOOPS.items():
        for row in rows:
            if row.loop == name:
                x, y = at(plain[row.tensors, row.parameters, row.kernel_us] / 1e3, row.ratio - 1)
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" fill-opacity="0.75"/>')
    parts.append(f'<text x="{LEFT}" y="14">what a step takes longer than plain</text>')
    parts.append(f'<text x="{WIDE - 20}" y="{HIGH - 28}" text-anchor="end">time of a plain step on the device</text>')
    for i, (words, colour) in enumerate(LOOPS.values()):
        x, y = LEFT + i % 3 * 150, HIGH - 24 + i // 3 * 16
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{x + 9}" y="{y}">{escape(words)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, nargs="+", default=TENSORS)
    parser.add_argument("--parameters", type=float, nargs="+", default=PARAMETERS)
    parser.add_argument("--kernels", type=float, nargs="+", default=KERNELS_US)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="a line for each loop, as soon as it was counted")
    parser.add_argument("--picture", type=Path, help="write an SVG here, too")
    parser.add_argument("--counted", type=Path, nargs="+", help="take what --json printed before, and count nothing")
    parser.add_argument("--long", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.counted:
        rows = [Row(**json.loads(line)) for file in given.counted for line in file.read_text().splitlines()]
    else:
        rows = []
        for row in counted_rows(given):
            rows.append(row)
            if given.json:
                print(json.dumps(asdict(row)), flush=True)
    if not given.json and not given.long:
        print("\n".join(table(rows)))
    if given.long:
        print(
            "\n".join(
                f"{row.loop}: {row.step_us:.1f} µs a step, {row.ratio:.4f}, {row.kernels:.2f} kernels" for row in rows
            )
        )
    if given.picture:
        given.picture.write_text(picture(rows), encoding="utf-8")


def counted_rows(given: argparse.Namespace) -> Iterator[Row]:
    """All shapes that were asked for."""
    simulated.start()
    torch.ops.sim.set_dry(True)
    for device in range(simulated.DEVICES):
        torch.ops.sim.set_capacity(device, 2**44)
    if given.long:
        yield from rows_of(Shape(10, 1e6, 1e3), 1200)
        return
    for tensors in given.tensors:
        for parameters in given.parameters:
            for kernel_us in given.kernels:
                shape = Shape(tensors, parameters, kernel_us)
                if shape.rows:
                    yield from rows_of(shape, given.steps)


if __name__ == "__main__":
    main()
