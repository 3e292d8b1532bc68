"""The faults of latentdlm, each a few lines that take the place of a repaired part, and what was tried against them.

update          the loop: what is tested before a step, and what is thrown away with it
architecture    the model: a query without a key, weights that are too coarse to move
objective       the loss: the cosine's end, a batch without a masked token
ranks           several processes: one leaves a step out alone

A part is written as one finds it in projects: the same arguments, the same weights, another line in the middle.
"""

from nantrap_systems.latentdlm.faults.architecture import PURE_BF16, ZERO_ATTENTION_MASK
from nantrap_systems.latentdlm.faults.objective import COSINE_END, NO_MASKED_TOKEN
from nantrap_systems.latentdlm.faults.ranks import RANK_SKIPS_ALONE
from nantrap_systems.latentdlm.faults.update import ISNAN_ONLY, LOST_WINDOW, NAN_NORM, STATIC_SCALE_FAULT

__all__ = ["FAULTS"]

FAULTS = (
    ISNAN_ONLY,
    STATIC_SCALE_FAULT,
    NAN_NORM,
    ZERO_ATTENTION_MASK,
    COSINE_END,
    PURE_BF16,
    LOST_WINDOW,
    NO_MASKED_TOKEN,
    RANK_SKIPS_ALONE,
)
