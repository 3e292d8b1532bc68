"""Every check of configurations and of source code. Importing this package registers them."""

from __future__ import annotations

from nantrap.doctor.checks import (
    derivatives,
    finite_tests,
    handling,
    keeping,
    logarithms,
    masks,
    mixed_precision,
    model,
    order,
    owning,
    precision,
    schedule,
    source_rates,
    source_settings,
    statistics,
    update,
    weights,
)
from nantrap.doctor.checks.registry import CONFIGURATION, PAGES, SOURCE, Check, Found

__all__ = [
    "CONFIGURATION",
    "PAGES",
    "SOURCE",
    "Check",
    "Found",
    "derivatives",
    "finite_tests",
    "handling",
    "keeping",
    "logarithms",
    "masks",
    "mixed_precision",
    "model",
    "order",
    "owning",
    "precision",
    "schedule",
    "source_rates",
    "source_settings",
    "statistics",
    "update",
    "weights",
]
