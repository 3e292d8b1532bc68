"""The rules by family. Importing this package registers them, in the order in which they are asked. Needs no torch."""

# the order is the order of asking
# isort: off
from nantrap.explain.rules import state
from nantrap.explain.rules import data
from nantrap.explain.rules import labels
from nantrap.explain.rules import half_forward
from nantrap.explain.rules import half_update
from nantrap.explain.rules import forward_poles
from nantrap.explain.rules import divisions
from nantrap.explain.rules import forward_range
from nantrap.explain.rules import backward
from nantrap.explain.rules import decompositions
from nantrap.explain.rules import optimisation
from nantrap.explain.rules import platform

# isort: on

__all__ = [
    "backward",
    "data",
    "decompositions",
    "divisions",
    "forward_poles",
    "forward_range",
    "half_forward",
    "half_update",
    "labels",
    "optimisation",
    "platform",
    "state",
]
