"""A plain form of an operator of your own: with it, nantrap tells a broken kernel from bad operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

FormType = TypeVar("FormType", bound=Callable[..., Any])

_FORMS: dict[str, Callable[..., Any]] = {}


def reference(operator: str) -> Callable[[FormType], FormType]:
    """Name the plain form of an operator: the same arguments, the same results, computed by operations of PyTorch.

    It is called after a failed step only, on the operands that the operator was given there, without a graph.

    Args:
        operator: the qualified name, as in `torch.library.custom_op("mylib::rms_norm", ...)`.

    Returns:
        A decorator that gives the function back unchanged.

    Example:
        >>> @reference("mylib::rms_norm")
        ... def rms_norm_in_plain_pytorch(x, weight, eps):
        ...     return (x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight
    """
    if not isinstance(operator, str) or operator.count("::") != 1 or not all(operator.split("::")):
        raise ValueError(f"nantrap.ops.reference({operator!r}): expected a qualified name, such as 'mylib::rms_norm'")

    def keep(form: FormType) -> FormType:
        _FORMS[operator] = form
        return form

    return keep


def reference_of(operator: str) -> Callable[..., Any] | None:
    """The plain form of an operator by its qualified name; `None` if none was named."""
    return _FORMS.get(operator)
