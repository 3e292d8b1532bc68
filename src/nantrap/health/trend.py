"""Which way a noisy curve goes: medians of its ends against the noise around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nantrap.record.columns import Floats, Ints

LEAST = 20
"""Fewer values than these have no trend."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The course of finite values, in their order.

    Attributes:
        first: median of the first tenth.
        last: median of the last tenth.
        low: the least median of a stretch.
        low_index: where that stretch ends, as an index into the values.
        noise: the scatter of the values around their neighbours.
        error: how far the two medians may be off by that scatter.
        direction: `falls`, `rises`, or `flat` where the difference is within the error.
    """

    first: float
    last: float
    low: float
    low_index: int
    noise: float
    error: float
    direction: Literal["falls", "flat", "rises"]


def trend(values: Floats) -> Trend | None:
    """The trend of finite values; `None` if they are too few."""
    if len(values) < LEAST:
        return None
    tenth = max(5, len(values) // 10)
    first, last = float(np.median(values[:tenth])), float(np.median(values[-tenth:]))
    parts = np.array_split(values, min(50, len(values) // 5))
    medians = np.array([np.median(part) for part in parts])
    # neighbours differ by noise alone, whatever the trend; sqrt(2) because both of them have it
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2)
    error = 1.2533 * noise / np.sqrt(tenth)  # of a median
    threshold = 4 * np.sqrt(2) * error + 1e-3 * abs(first) + 1e-12
    direction: Literal["falls", "flat", "rises"] = "flat"
    if first - last > threshold:
        direction = "falls"
    elif last - first > max(threshold, 0.2 * noise, 0.01 * abs(first)):  # a long log shows drifts that do not matter
        direction = "rises"
    lowest = int(np.argmin(medians))
    end = sum(len(part) for part in parts[: lowest + 1])
    return Trend(first, last, float(medians[lowest]), end - 1, noise, float(error), direction)


def spikes(values: Floats, *, factor: float = 8.0) -> Ints:
    """Indices of values that stick out of the values before them.

    A value is a spike if it lies more than `factor` times the usual scatter above the median of the stretch before its
    own, and above that of its own: a step to a new level is no spike, and neither is the noisy start of a run.
    """
    count = len(values)
    size = max(16, count // 500)
    if count < 2 * size:
        return np.empty(0, dtype=np.int64)
    blocks = count // size
    body = values[: blocks * size].reshape(blocks, size)
    median = np.median(body, axis=1)
    scatter = 1.4826 * np.median(np.abs(body - median[:, None]), axis=1)
    # per stretch, not per value: a run may have millions
    level = np.maximum(median, np.append(median[:1], median[:-1]))
    width = np.maximum(scatter, np.append(scatter[:1], scatter[:-1]))
    # a curve without noise has no spikes in its last digits, nor one that has fallen to a thousandth
    floor = np.maximum(0.1 * np.abs(level), 1e-3 * np.abs(median[0]))
    limit = level + np.maximum(factor * width, floor)
    rest = np.flatnonzero(values[blocks * size :] > limit[-1]) + blocks * size
    return np.append(np.flatnonzero(body > limit[:, None]), rest).astype(np.int64)
