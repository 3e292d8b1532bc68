"""The causes by slug: code and one-line title. Slugs and codes are a contract and never change meaning.

NT1xx data · NT2xx forward maths · NT3xx backward maths · NT4xx precision · NT5xx optimisation ·
NT6xx state · NT7xx distributed and platform · NT8xx configuration · NT9xx checkpoint files
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from nantrap.errors import UsageError


class Code(NamedTuple):
    """What a cause is called: its stable code, its slug and its title."""

    code: str
    slug: str
    title: str


_TABLE: Final = (
    Code("NT000", "unknown", "no cause could be established"),
    Code("NT101", "bad_input_data", "the batch holds values that no model can train on"),
    Code("NT102", "label_out_of_range", "a target lies outside the range its loss accepts"),
    Code("NT103", "empty_reduction", "a mean or quotient was taken over zero elements"),
    Code("NT104", "ctc_infeasible_alignment", "a CTC target does not fit into its input"),
    Code("NT105", "input_out_of_scale", "a batch or target lies in another scale than the others"),
    Code("NT201", "log_of_zero", "the logarithm of zero gave -Inf"),
    Code("NT202", "division_by_zero", "a division by exactly zero"),
    Code("NT203", "softmax_fully_masked_row", "softmax over a row in which every position is masked"),
    Code("NT204", "zero_times_inf", "zero times infinity gave NaN"),
    Code("NT205", "exp_overflow", "exp of a finite value exceeded the range of its dtype"),
    Code("NT206", "std_of_one_element", "an unbiased standard deviation of a single element"),
    Code("NT207", "exploding_recurrence", "one forward pass multiplied its values again and again"),
    Code("NT208", "domain_error", "a function was given an argument for which it is not defined"),
    Code("NT301", "singular_gradient_at_zero", "the derivative is infinite at exactly zero"),
    Code("NT302", "arccos_boundary", "the derivative of acos or asin is infinite at ±1"),
    Code(
        "NT303",
        "where_unselected_branch",
        "a branch that was not selected put NaN into the gradient",
    ),
    Code(
        "NT304",
        "degenerate_linalg_backward",
        "a matrix with a repeated or zero spectrum was decomposed or inverted",
    ),
    Code("NT401", "fp16_forward_overflow", "an activation exceeded the range of float16"),
    Code("NT402", "fp16_loss_overflow", "the loss was reduced in half precision and overflowed"),
    Code(
        "NT403",
        "mask_overflow",
        "a mask value near the dtype's limit overflowed when something was added",
    ),
    Code("NT404", "eps_underflow_half", "an epsilon is zero in the precision in which it is used"),
    Code("NT405", "adam_eps_underflow_half", "Adam's eps is zero in the precision of its state"),
    Code(
        "NT406",
        "optimizer_constant_rounding",
        "an optimizer constant rounds to one in its precision",
    ),
    Code(
        "NT407",
        "loss_scale_misuse",
        "the loss scale overflowed, collapsed or was applied in the wrong order",
    ),
    Code("NT501", "lr_too_high", "the learning rate is beyond the stability limit"),
    Code("NT502", "exploding_gradient", "the gradients grew step by step until they overflowed"),
    Code("NT503", "grad_norm_overflow", "the norm of finite gradients overflowed"),
    Code(
        "NT504",
        "bad_initialisation",
        "the first forward pass is already far outside any useful range",
    ),
    Code("NT505", "dead_training", "nothing is learned: the updates are exactly zero"),
    Code("NT601", "uninitialised_memory", "a parameter or buffer was never initialised"),
    Code("NT602", "corrupt_optimizer_state", "the optimizer state was bad before the step"),
    Code("NT603", "corrupt_checkpoint", "the weights were non-finite when they were loaded"),
    Code("NT604", "resume_lr_jump", "restored state changed the learning rate"),
    Code(
        "NT605",
        "bn_buffers_poisoned",
        "a buffer updated in the forward pass holds non-finite values",
    ),
    Code("NT606", "ema_poisoned", "the averaged weights hold non-finite values"),
    Code("NT607", "state_overwritten", "the program itself wrote a non-finite value into its own state"),
    Code("NT701", "rank_divergence", "the ranks hold or decided different things"),
    Code("NT702", "hardware_fault", "the same operation gave different results on the same operands"),
    Code("NT703", "compiler_bug", "the compiled model differs from the eager one"),
    Code(
        "NT704",
        "backend_or_kernel_bug",
        "one kernel is wrong on inputs for which the reference is right",
    ),
)

BY_SLUG: Final = MappingProxyType({entry.slug: entry for entry in _TABLE})
BY_CODE: Final = MappingProxyType({entry.code: entry for entry in _TABLE})


def lookup(code_or_slug: str) -> Code:
    """Find a cause by code (`NT203`, `nt203`) or slug (`softmax_fully_masked_row`)."""
    entry = BY_CODE.get(code_or_slug.upper()) or BY_SLUG.get(code_or_slug.lower())
    if entry is None:
        raise UsageError(f"there is no cause {code_or_slug!r}; `nantrap explain` lists every code and slug")
    return entry
