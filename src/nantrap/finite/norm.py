"""The gradient norm, as `clip_grad_norm_` takes it, and what to do when it overflows.

Most training loops clip and take the norm anyway, and a finite norm proves that every gradient is finite: it is
the free flag of a healthy step. The converse does not hold: squares of finite gradients above 1.8e19 (float32) or
256 (float16 with a float16 result) overflow, and clipping by an infinite norm silently zeroes the whole update.
`exact_norm` decides such cases.

There are two norms. `gradient_norm` is PyTorch's, bit for bit, for whoever clips by it. `flag_norm` is for a loop that
does not clip: where a model has many small parameters it takes a fraction of the time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nantrap.finite.check import SMALL
from nantrap.finite.kinds import readable
from nantrap.finite.torch_private import flattened, multiply_all, norms_of

try:
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm
except ImportError:  # torch < 2.6 has the two halves only inside clip_grad_norm_

    def get_total_norm(tensors: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:  # type: ignore[misc]
        """The norm over all tensors, in the order of operations of `clip_grad_norm_`."""
        if not tensors:
            return torch.tensor(0.0)
        norms = [torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors]
        device = norms[0].device
        total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), norm_type)
        return total

    def clip_grads_with_norm_(parameters: Sequence[Tensor], max_norm: float, total: Tensor) -> None:  # type: ignore[misc]
        """Scale gradients in place by `max_norm / (total + 1e-6)`, at most 1."""
        coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(coefficient.to(parameter.grad.device))


largest_value: Callable[[Sequence[Tensor]], Tensor] = functools.partial(get_total_norm, norm_type=math.inf)
"""The largest magnitude in a list of dense tensors; NaN or Inf if there is any. Not a function of ours: one call less
in every step."""


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The total 2-norm, bit for bit as `torch.nn.utils.clip_grad_norm_` computes it; stays on the device."""
    if are_alike(gradients):
        return norm_of_alike(gradients)
    with torch.no_grad():
        for gradient in gradients:
            if gradient.__class__ is not Tensor or gradient.is_sparse:
                return _norm_of_mixed(gradients)
        return get_total_norm(gradients)


def norm_of_alike(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of gradients that are known to be alike (`are_alike`)."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms_of(gradients, 2.0)), 2.0)
    return norm.detach() if norm.requires_grad else norm


def flag_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The total 2-norm for those who do not clip by it: finite only if every gradient is. Stays on the device.

    On a CPU each reduction has a fixed cost, so small gradients are joined and reduced together. The result may differ
    from `gradient_norm` by rounding.
    """
    if not are_alike(gradients):
        return gradient_norm(gradients)
    small = [gradient for gradient in gradients if gradient.numel() <= SMALL]
    large = [gradient for gradient in gradients if gradient.numel() > SMALL] if len(small) < len(gradients) else []
    norms = [*norms_of(large, 2.0)] if large else []
    if small:
        norms.append(torch.linalg.vector_norm(small[0] if len(small) == 1 else flattened(small)))
    norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return norm.detach() if norm.requires_grad else norm


def are_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether these are plain dense tensors of one dtype on a CPU: PyTorch's own grouping would make one group of them.

    That grouping takes longer than the norms themselves where the gradients are small.
    """
    if not tensors:
        return False
    dtype = tensors[0].dtype
    for tensor in tensors:
        if not (
            tensor.is_cpu and tensor.dtype is dtype and tensor.layout is torch.strided and tensor.__class__ is Tensor
        ):
            return False
    return True


def whole_norm(norm: Tensor) -> Tensor:
    """A norm as a plain tensor. That of sharded gradients is a `DTensor`, which the ranks put together here."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _norm_of_mixed(gradients: Sequence[Tensor]) -> Tensor:
    """The norm where gradients are sparse, sharded, or both sharded and plain (tensor parallel layers)."""
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    groups = list(_by_mesh(dense).values())
    if len(groups) == 1:
        return whole_norm(get_total_norm(groups[0]))
    norms = [whole_norm(get_total_norm(group)) for group in groups]
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total


def _by_mesh(tensors: Sequence[Tensor]) -> dict[Any, list[Tensor]]:
    """Plain tensors together, and sharded ones by the mesh they are sharded over."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return groups


def clip_with_norm(parameters: Sequence[Tensor], *, max_norm: float, total: Tensor, known: float | None = None) -> None:
    """Clip as `clip_grad_norm_` does. With the norm `known` on the host, a factor of 1 is not multiplied out."""
    if known is not None and known + 1e-6 < max_norm * (1 - 1e-6):
        return  # the clamped coefficient is 1.0, and x * 1.0 is x, bit for bit
    gradients = [p.grad for p in parameters if p.grad is not None]
    if are_alike(gradients):
        with torch.no_grad():
            multiply_all(gradients, torch.clamp(max_norm / (total + 1e-6), max=1.0))
        return
    sparse = [p for p in parameters if p.grad is not None and p.grad.is_sparse]
    if sparse:
        coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for parameter in sparse:
            assert parameter.grad is not None
            parameter.grad.mul_(coefficient.to(parameter.grad.device))
        parameters = [p for p in parameters if p.grad is not None and not p.grad.is_sparse]
    groups = [parameters] if {*map(type, gradients)} == {Tensor} else _by_mesh(parameters).values()
    for group in groups:
        clip_grads_with_norm_(group, max_norm, total)


def zero_if_bad(norm: Tensor) -> Tensor:
    """A norm by which gradients are clipped to themselves where it is not finite. Stays on the device."""
    return norm.nan_to_num(nan=0.0, posinf=0.0)


def exact_norm(gradients: Sequence[Tensor]) -> float:
    """The norm in float64, scaled against overflow: finite whenever every gradient is finite. Reads the device.

    Sharded gradients are put together by all ranks of their mesh, so that each rank gets the same answer.
    """
    groups = list(_by_layout(gradients).values())
    norms = [_norm_of_shards(group) if hasattr(group[0], "to_local") else exact_local_norm(group) for group in groups]
    return math.hypot(*norms) if all(map(math.isfinite, norms)) else math.nan


def _by_layout(tensors: Sequence[Tensor]) -> dict[Any, list[Tensor]]:
    """Plain tensors together, and sharded ones by their mesh and by their placement on it."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        key = (getattr(tensor, "device_mesh", None), tuple(getattr(tensor, "placements", ())))
        groups.setdefault(key, []).append(tensor)
    return groups


def _norm_of_shards(tensors: Sequence[Any]) -> float:
    """The norm of tensors that are sharded in the same way. Every rank of the mesh calls it."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh, placements = tensors[0].device_mesh, tensors[0].placements
    own = torch.tensor([exact_local_norm(tensors)], dtype=torch.float64, device=mesh.device_type)
    layout = [Shard(0) if placement.is_shard() else Replicate() for placement in placements]
    norms = DTensor.from_local(own, mesh, layout, run_check=False).full_tensor().tolist()
    return math.hypot(*norms) if all(map(math.isfinite, norms)) else math.nan


def exact_local_norm(gradients: Sequence[Tensor]) -> float:
    """The exact norm of the gradients that this rank holds."""
    scale, total = 0.0, 0.0
    for gradient in gradients:
        dense = readable(gradient)
        if dense is None:
            continue
        peak = float(torch.linalg.vector_norm(dense.double(), math.inf))
        if peak == 0.0:
            continue
        if not math.isfinite(peak):
            return math.nan
        scaled = float(torch.linalg.vector_norm(dense.double() / peak))
        # sqrt(sum_i (peak_i * scaled_i)^2), kept relative to the largest peak seen
        top = max(scale, peak)
        total = total * (scale / top) ** 2 + (scaled * peak / top) ** 2
        scale = top
    return scale * math.sqrt(total)
