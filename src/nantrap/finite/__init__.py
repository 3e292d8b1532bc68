"""Is it finite, how large, how near the dtype's limit: the only place that reads raw values in bulk."""

from nantrap.finite.check import (
    any_infinite,
    any_nonfinite,
    nan_if_any_bad,
    nonfinite_flag,
    read,
    readable,
    value_of,
    values_of,
)
from nantrap.finite.norm import (
    clip_with_norm,
    exact_local_norm,
    exact_norm,
    flag_norm,
    gradient_norm,
    largest_value,
    norm_of_alike,
    whole_norm,
)
from nantrap.finite.stats import (
    dtype_name,
    first_nonfinite_index,
    has_nan_payload,
    headroom_bits,
    limit_of,
    size_in_bytes,
    tensor_stats,
)

__all__ = [
    "any_infinite",
    "any_nonfinite",
    "clip_with_norm",
    "dtype_name",
    "exact_local_norm",
    "exact_norm",
    "first_nonfinite_index",
    "flag_norm",
    "gradient_norm",
    "has_nan_payload",
    "headroom_bits",
    "largest_value",
    "limit_of",
    "nan_if_any_bad",
    "nonfinite_flag",
    "norm_of_alike",
    "read",
    "readable",
    "size_in_bytes",
    "tensor_stats",
    "value_of",
    "values_of",
    "whole_norm",
]
