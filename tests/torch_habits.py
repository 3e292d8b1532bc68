"""Where versions of torch differ in what a program does, guarded or not: measured here, not read from a number.

A program of the zoo whose failure or health rests on such a difference is left out where torch does it the other way.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
"""For what cannot be measured by a few operations."""


def _slope(value: Tensor, at: Tensor) -> float:
    value.backward()  # type: ignore[no-untyped-call]
    assert at.grad is not None
    return float(at.grad)


def _clamp_passes_at_its_bound() -> bool:
    """Up to 2.13 the slope of clamp is 1 at its bound, so that an infinite slope behind it passes; 2.15 has 0."""
    one = torch.ones((), requires_grad=True)
    return _slope(one.clamp(max=1.0), one) == 1.0


def _atan2_is_safe_at_zero() -> bool:
    """Older versions give a NaN gradient there."""
    zero = torch.zeros((), requires_grad=True)
    return _slope(torch.atan2(zero, zero), zero) == 0.0


CLAMP_PASSES_AT_ITS_BOUND = _clamp_passes_at_its_bound()
ATAN2_IS_SAFE_AT_ZERO = _atan2_is_safe_at_zero()
_FAIL_AT_THE_BOUND_OF_A_CLAMP = {
    "asin_of_unit_quaternion",
    "geodesic_loss_of_exact_rotation",
    "head_pose_acos_of_equal_quaternions",
    "sine_from_cosine_of_one",
    "quaternion_pitch_in_gimbal_lock",
    "nan_buffer_by_design_beside_acos",
    "haversine_antipodes",
    "angular_margin_on_prototype",
    "poincare_atanh_boundary",
    "custom_root_backward_at_zero",
    "survival_clamp_bf16",
    "arcface_exact_match",
    "pna_std_of_one_neighbour",
    "quaternion_geodesic_of_identity_pose",
    "poincare_arcosh_of_one",
    "rotation_geodesic_identity",
}


def is_possible(program: Path) -> bool:
    """Whether the program does here what its truth says, and has the packages it needs."""
    if program.stem in _FAIL_AT_THE_BOUND_OF_A_CLAMP and not CLAMP_PASSES_AT_ITS_BOUND:
        return False
    if program.stem == "zero_vectors_with_safe_slopes" and not ATAN2_IS_SAFE_AT_ZERO:
        return False
    needs_transformers = "transformers" in program.read_text(encoding="utf-8")
    return not needs_transformers or importlib.util.find_spec("transformers") is not None
