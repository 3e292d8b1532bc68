"""My kernel or me: an operator again in its plain form, on the operands that it was given in the failed step.

The plain form is the one that `nantrap.ops.reference` names, or the math form of attention. Where the plain form is
finite or gives other values, the operator is at fault, and the rows that differ are named. Where the plain form fails
at the same places, its operands are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nantrap.locate.torch_private import DispatchMode, schema_of
from nantrap.locate.trace.storage import map_leaves, tensors_in
from nantrap.ops.references import reference_of

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.locate.trace import Capture

MOST_COMPARED = 4
"""Operators of a step that are compared, the earliest first: each may need one more run of the step."""
_ALIKE = 0.02
"""Differences up to this part of the largest value of the plain form are rounding."""
_MATH = "the math form of attention"


@dataclass(frozen=True, slots=True)
class Compared:
    """An operator beside its plain form, on the same operands.

    Attributes:
        name: of the operator.
        form: the plain form, in words.
        differs: where the results differ; `None` if they do not.
        output: the operator's result of which that is said.
        plain: that of the plain form.
        both_bad: both are not finite at the same places.
    """

    name: str
    form: str
    differs: Tensor | None
    output: Tensor
    plain: Tensor
    both_bad: bool


class PlainForms(DispatchMode):
    """Runs operators that have a plain form in that form. `hits`: which, and how often."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hits: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = schema_of(func).name
        form = reference_of(name)
        if form is None:
            return func(*args, **(kwargs or {}))
        self.hits[name] = self.hits.get(name, 0) + 1
        with torch.no_grad():
            return form(*args, **(kwargs or {}))


@contextlib.contextmanager
def plain_forms() -> Iterator[PlainForms]:
    """Operators with a plain form run in that form, and attention in its math form."""
    mode = PlainForms()
    with sdpa_kernel(SDPBackend.MATH):
        yield mode


def compare_kernels(case: Case) -> list[Compared]:
    """The operators of the step that have a plain form, each beside it: the guilty one, and the earliest ones."""
    captures: list[Capture] = []
    trace = case.trace
    for op in [] if trace is None else trace.ops:
        if len(captures) < MOST_COMPARED and reference_of(op.name.replace(".", "::", 1)) is not None:
            capture = case.operands_of(op.index)
            captures += [] if capture is None else [capture]
    if case.capture is not None and case.capture not in captures and form_of(case.capture) is not None:
        captures.append(case.capture)
    found = [compared(capture) for capture in captures]
    return [each for each in found if each is not None]


def form_of(capture: Capture) -> tuple[Callable[..., Any], str] | None:
    """The plain form of an operator and its name in words."""
    name = schema_of(capture.func).name
    form = reference_of(name)
    if form is not None:
        return form, f"its reference {getattr(form, '__name__', 'function')}"
    forward = name.startswith("aten::_scaled_dot_product") and not name.endswith(("_backward", "_math"))
    return (_attention, _MATH) if forward else None


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
    """What the fused forms of attention compute, in plain operations. Their arguments differ after the first three."""
    mask = named.get("attn_mask", named.get("attn_bias"))
    mask = mask if isinstance(mask, Tensor) else next((each for each in rest if isinstance(each, Tensor)), None)
    causal = bool(named.get("is_causal", any(each is True for each in rest)))
    with sdpa_kernel(SDPBackend.MATH):
        result: Tensor = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, scale=named.get("scale")
        )
    return result


def compared(capture: Capture) -> Compared | None:
    """An operator beside its plain form; `None` where there is none, or it gives results of another shape."""
    known = form_of(capture)
    if known is None:
        return None
    form, words = known
    try:
        with torch.no_grad():
            args, kwargs = map_leaves((capture.args, capture.kwargs), _own)
            given = form(*args, **kwargs)
    except Exception:  # a function of the user: then it tells nothing
        return None
    results = [each for each in tensors_in(given) if each.is_floating_point()]
    outputs = [each for each in capture.outputs if each.is_floating_point()]
    name = schema_of(capture.func).name.replace("::", ".")
    last: Compared | None = None
    for output, plain in zip(outputs, results, strict=False):
        if output.shape != plain.shape:
            return None
        last = _beside(name, words, output.detach().float(), plain.detach().float())
        if last.differs is not None or last.both_bad:
            return last
    return last


def _beside(name: str, words: str, output: Tensor, plain: Tensor) -> Compared:
    bad, plain_bad = ~output.isfinite(), ~plain.isfinite()
    finite = plain[~plain_bad]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    away = (output - plain).abs() > _ALIKE * largest
    differs = (bad & ~plain_bad) | (away & ~bad & ~plain_bad)
    both_bad = bool(bad.any()) and bool((bad == plain_bad).all())
    return Compared(name, words, differs if bool(differs.any()) else None, output, plain, both_bad)


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
