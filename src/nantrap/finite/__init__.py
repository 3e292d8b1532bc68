"""Is it finite, how large, how near the dtype's limit: the only place that reads raw values in bulk."""

from nantrap.finite.check import any_infinite, any_nonfinite, nonfinite_flag, read, readable
from nantrap.finite.norm import clip_with_norm, exact_norm, gradient_norm, total_norm, whole_norm
from nantrap.finite.stats import (
    dtype_name,
    first_nonfinite_index,
    has_nan_payload,
    headroom_bits,
    limit_of,
    tensor_stats,
)

__all__ = [
    "any_infinite",
    "any_nonfinite",
    "clip_with_norm",
    "dtype_name",
    "exact_norm",
    "first_nonfinite_index",
    "gradient_norm",
    "has_nan_payload",
    "headroom_bits",
    "limit_of",
    "nonfinite_flag",
    "read",
    "readable",
    "tensor_stats",
    "total_norm",
    "whole_norm",
]
