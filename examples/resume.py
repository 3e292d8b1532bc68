"""Checkpoints without NaN: the store refuses a non-finite state; the run continues from the last good one.

Run it: python examples/resume.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import nn

import nantrap


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same model and optimizer each time the program starts."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


with tempfile.TemporaryDirectory() as folder:
    store = nantrap.CheckpointStore(folder)
    model, optimizer = make()
    guard = nantrap.Guard(model, optimizer, store=store, save_every=5)
    for _ in range(20):
        guard.attempt(lambda x: model(x).square().mean(), torch.randn(8, 4))
    with torch.no_grad():
        model.weight[0, 0] = float("nan")  # a bug outside the guarded step
    try:
        store.save(step=20, model=model, optimizer=optimizer)
    except nantrap.NonFiniteError as error:
        print(f"not saved: {str(error).splitlines()[0]}")
    guard.close()

    model, optimizer = make()  # the program starts again
    loaded = store.load(model=model, optimizer=optimizer)
    print(f"resumed after step {loaded.step}; the weights are finite: {bool(model.weight.isfinite().all())}")
