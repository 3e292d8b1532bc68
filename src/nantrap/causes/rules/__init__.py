"""The rules by family. Importing this package registers them, in the order in which they are run. Needs no torch."""

# the order in which they are run
# isort: off
from nantrap.causes.rules import state
from nantrap.causes.rules import data
from nantrap.causes.rules import labels
from nantrap.causes.rules import half_forward
from nantrap.causes.rules import half_update
from nantrap.causes.rules import forward_poles
from nantrap.causes.rules import divisions
from nantrap.causes.rules import forward_range
from nantrap.causes.rules import backward
from nantrap.causes.rules import decompositions
from nantrap.causes.rules import optimisation
from nantrap.causes.rules import platform

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
