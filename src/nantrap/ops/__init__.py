"""Numerically safe building blocks: finite in value and in gradient where the usual line is not.

Each function says in its docstring the formula, the limit it avoids, and what it does at the limit. What all of them
keep to:

- A NaN that comes in comes out, unless it is masked. Nothing here hides a fault that began elsewhere.
- What is masked reaches neither the value nor the gradient, whatever it holds.
- A row, group or batch without a single value gives zeros with gradient zero.
- Half precision is computed in float32, inside and outside autocast. Results that always fit come back in the
  input's dtype; losses stay in float32.
- Nothing waits for the device, but for the range checks of the colour codec (`check=False` leaves them out).

They depend on torch alone.
"""

from nantrap.ops.colour import colour_to_tokens, tokens_to_colour
from nantrap.ops.diffusion import (
    AdaLNZero,
    cosine_schedule,
    decoupled_weights,
    linear_schedule,
    min_snr_weight,
    modulate,
    signal_and_noise,
)
from nantrap.ops.distributions import (
    Sinkhorn,
    normalize_weights,
    sinkhorn,
    temperature_log_softmax,
    temperature_softmax,
)
from nantrap.ops.elementary import safe_acos, safe_asin, safe_divide, safe_log, safe_pow, safe_sqrt, xlogx
from nantrap.ops.losses import beta_pmi, cross_entropy, ctc_feasible, ctc_loss, kl_divergence
from nantrap.ops.masked import (
    MaskedAttention,
    masked_attention,
    masked_log_softmax,
    masked_mean,
    masked_mse,
    masked_softmax,
)
from nantrap.ops.norms import RMSNorm, rms_norm, safe_norm, safe_std, safe_var
from nantrap.ops.references import reference

__all__ = [
    "AdaLNZero",
    "MaskedAttention",
    "RMSNorm",
    "Sinkhorn",
    "beta_pmi",
    "colour_to_tokens",
    "cosine_schedule",
    "cross_entropy",
    "ctc_feasible",
    "ctc_loss",
    "decoupled_weights",
    "kl_divergence",
    "linear_schedule",
    "masked_attention",
    "masked_log_softmax",
    "masked_mean",
    "masked_mse",
    "masked_softmax",
    "min_snr_weight",
    "modulate",
    "normalize_weights",
    "reference",
    "rms_norm",
    "safe_acos",
    "safe_asin",
    "safe_divide",
    "safe_log",
    "safe_norm",
    "safe_pow",
    "safe_sqrt",
    "safe_std",
    "safe_var",
    "signal_and_noise",
    "sinkhorn",
    "temperature_log_softmax",
    "temperature_softmax",
    "tokens_to_colour",
    "xlogx",
]
