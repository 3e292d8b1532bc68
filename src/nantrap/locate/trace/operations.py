"""What is known of an operation by its name and schema: whether it reads, writes, selects or only gives a view."""

from __future__ import annotations

import functools
from typing import Any

from nantrap.locate.torch_private import schema_of

WITNESSES = (
    "aten.binary_cross_entropy", "aten.nll_loss", "aten.kl_div", "aten._linalg", "aten.linalg_", "aten._ctc_loss",
    "aten.soft_margin_loss", "aten.xlogy", "aten._softmax",
)  # fmt: skip
"""Operations whose arguments a rule may need even when they are not the origin: targets, spectra."""
EMPTY = frozenset(
    {"aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided", "aten.new_empty_strided"}
)  # fmt: skip
"""They give memory that nothing was written to yet."""
TAKES_OUT = "aten._local_scalar_dense"
"""It gives the value of a tensor as a plain number: `.item()`, `float(...)`."""
ARITHMETIC = frozenset(
    f"aten.{name}{suffix}"
    for name in ("add", "sub", "rsub", "mul", "div", "pow", "addcmul", "addcdiv", "lerp")
    for suffix in ("", "_")
)
"""Operations in which a plain number that is NaN or Inf is no mask."""
ADOPTS = "aten.set_"
"""It puts other memory under a tensor, and computes nothing."""
OVERWRITE_PART = frozenset(
    {"aten.index_put_", "aten.index_copy_", "aten.index_fill_", "aten.masked_fill_", "aten.masked_scatter_",
     "aten.scatter_"}
)  # fmt: skip
"""Operations that write some of a tensor's values, without reading those."""

OVERWRITE = frozenset(
    {"aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_", "aten.bernoulli_",
     "aten.random_", "aten.exponential_", "aten.set_", "aten._foreach_zero_", "aten._foreach_copy_"}
)  # fmt: skip
"""They write their first argument and do not read it."""
SELECTS = frozenset(
    {"aten.where", "aten.masked_fill", "aten.masked_fill_", "aten.nan_to_num", "aten.nan_to_num_", "aten.clamp",
     "aten.clamp_", "aten.clamp_min", "aten.clamp_max", "aten.minimum", "aten.maximum", "aten.relu", "aten.relu_",
     "aten.threshold", "aten.threshold_backward", "aten.hardtanh", "aten.hardtanh_backward", "aten.masked_scatter",
     "aten.index_put", "aten.index_put_", "aten.copy_", "aten.isfinite", "aten.isnan", "aten.isinf"}
)  # fmt: skip
"""They drop a value on purpose: what they erased does not come back."""
MIXES = frozenset(
    {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.convolution",
     "aten.convolution_backward", "aten.mkldnn_convolution", "aten.mkldnn_linear", "aten._fft_r2c", "aten._fft_c2c",
     "aten._fft_c2r", "aten._cdist_forward", "aten._cdist_backward"}
)  # fmt: skip
"""A value of their result comes from many places of an operand, and not from its own."""
SILENT_WRITERS = frozenset({"aten.native_batch_norm", "aten.cudnn_batch_norm", "aten.miopen_batch_norm"})
"""They update the running statistics among their arguments, and their schema does not show it."""


@functools.cache
def op_name(func: Any) -> str:
    """`aten.log` for `aten.log.default`."""
    name = str(func)
    return name.rsplit(".", 1)[0] if name.count(".") > 1 else name


@functools.cache
def is_view(func: Any) -> bool:
    """Whether an operation only gives another view of its input."""
    schema = schema_of(func)
    return not schema.is_mutable and any(each.alias_info is not None for each in schema.returns)


@functools.cache
def outs_of(func: Any) -> frozenset[str]:
    """The names of an operation's arguments that only take its result."""
    return frozenset(argument.name for argument in schema_of(func).arguments if argument.is_out)


def reads_only_shape(name: str) -> bool:
    """Whether an operation reads the shape of its input and no values."""
    return name.endswith("_like") or name.startswith("aten.new_")
