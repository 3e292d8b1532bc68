"""What a tool costs a healthy step: the ratio to the plain loop, with a control that compares that loop with itself.

One process and one thread. The tool and its baseline train short runs of the same program in turn; a pair of runs
gives one ratio, that of their median steps without the first ones, in processor time, so that other processes disturb
it less. Printed is the median over all pairs, with the middle half.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.loading import Case
from zoo.running import Run, Tool
from zoo.tools import find_tool

WARM = 4


def transformer() -> tuple[nn.Module, Any, Any, int]:
    """Two layers, width 64, 8 × 32 tokens."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(512, 64), encoder, nn.Linear(64, 512))
    batch = torch.randint(0, 512, (8, 32))
    return model, batch, lambda m, b: nn.functional.cross_entropy(m(b).flatten(0, 1), b.flatten()), 14


def cnn() -> tuple[nn.Module, Any, Any, int]:
    """Four convolutions with BatchNorm on 16 images of 16 × 16."""
    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 16), (16, 32), (32, 32), (32, 32)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    batch = (torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,)))
    return model, batch, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), 14


def mlp() -> tuple[nn.Module, Any, Any, int]:
    """Two layers: a step of about half a millisecond."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    batch = (torch.randn(128, 64), torch.randint(0, 10, (128,)))
    return model, batch, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), 60


MODELS = {"transformer": transformer, "cnn": cnn, "mlp": mlp}


def build(make: Callable[[], tuple[nn.Module, Any, Any, int]]) -> Case:
    """A healthy program of the zoo's form."""
    torch.manual_seed(0)
    model, batch, loss_fn, steps = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    truth = {"cause": "benign", "first_bad_step": None}
    return {"model": model, "optimizer": optimizer, "batches": [batch], "loss_fn": loss_fn, "steps": steps,
            "autocast_dtype": None, "truth": truth}  # fmt: skip


def step_of(tool: Tool, make: Callable[[], tuple[nn.Module, Any, Any, int]]) -> float:
    """The median step of one run, in seconds."""
    run = Run(Path("healthy.py"), build=lambda: build(make), clock=time.process_time)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        tool.train(run)
    return statistics.median(run.step_seconds()[WARM:-1])


def measure(tool: Tool, pairs: int) -> dict[str, dict[str, float]]:
    """For each model: the ratio, the middle half, and the same of the control."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    base = find_tool(getattr(tool, "baseline", "plain"))
    found = {}
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(os.chdir, here)
        os.chdir(folder)  # some tools write into the working folder
        for name, make in MODELS.items():
            for each in (base, tool):
                step_of(each, make)
            ratios, control, plain = [], [], []
            for index in range(pairs):
                order = (base, tool, base) if index % 2 else (tool, base, base)
                times = [step_of(each, make) for each in order]
                theirs = times[order.index(tool)] if tool is not base else times[0]
                first = times[0] if index % 2 else times[1]
                ratios.append(theirs / first)
                control.append(times[2] / first)
                plain.append(first)
            found[name] = {**_middle(ratios), "plain_ms": statistics.median(plain) * 1e3}
            found[name] |= {f"control_{key}": value for key, value in _middle(control).items()}
    logging.disable(logging.NOTSET)
    return {name: {key: round(value, 4) for key, value in row.items()} for name, row in found.items()}


def _middle(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return {"ratio": statistics.median(values), "low": low, "high": high}


def lines(tool: Tool, found: dict[str, dict[str, float]]) -> list[str]:
    """The figures in words."""
    return [
        f"{tool.name:26} {name:12} {row['ratio']:.3f} ({row['low']:.3f} .. {row['high']:.3f}); "
        f"control {row['control_ratio']:.3f} ({row['control_low']:.3f} .. {row['control_high']:.3f}); "
        f"plain step {row['plain_ms']:.2f} ms"
        for name, row in found.items()
    ]
