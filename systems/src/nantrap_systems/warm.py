"""Imported by the process that others are forked off: what every training process would import for itself."""

import torch._dynamo  # noqa: F401  (the first optimizer imports it, which takes seconds)

import nantrap_systems.showcase  # noqa: F401
