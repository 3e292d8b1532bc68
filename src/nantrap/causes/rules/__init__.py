"""The rules by family. Importing this package registers them, in the order in which they are run. Needs no torch."""

# the order in which they are run
# isort: off
from nantrap.causes.rules import loaded_state
from nantrap.causes.rules import written_state
from nantrap.causes.rules import bad_data
from nantrap.causes.rules import reductions
from nantrap.causes.rules import alignments
from nantrap.causes.rules import scales
from nantrap.causes.rules import labels
from nantrap.causes.rules import half_constants
from nantrap.causes.rules import half_forward
from nantrap.causes.rules import half_update
from nantrap.causes.rules import masked_rows
from nantrap.causes.rules import logarithms
from nantrap.causes.rules import products
from nantrap.causes.rules import domains
from nantrap.causes.rules import divisions
from nantrap.causes.rules import forward_range
from nantrap.causes.rules import decompositions
from nantrap.causes.rules import unselected
from nantrap.causes.rules import slopes
from nantrap.causes.rules import learning_rate
from nantrap.causes.rules import gradients
from nantrap.causes.rules import initialisation
from nantrap.causes.rules import no_learning
from nantrap.causes.rules import platform

# isort: on

__all__ = [
    "alignments",
    "bad_data",
    "decompositions",
    "divisions",
    "domains",
    "forward_range",
    "gradients",
    "half_constants",
    "half_forward",
    "half_update",
    "initialisation",
    "labels",
    "learning_rate",
    "loaded_state",
    "logarithms",
    "masked_rows",
    "no_learning",
    "platform",
    "products",
    "reductions",
    "scales",
    "slopes",
    "unselected",
    "written_state",
]
