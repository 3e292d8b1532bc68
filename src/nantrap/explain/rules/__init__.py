"""The rules by family. Importing this package registers them, in the order in which they are asked; it needs no torch."""

from nantrap.explain.rules import state  # noqa: I001  (the order is the order of asking)
from nantrap.explain.rules import data, precision, forward, backward, optimisation, platform

__all__ = ["backward", "data", "forward", "optimisation", "platform", "precision", "state"]
