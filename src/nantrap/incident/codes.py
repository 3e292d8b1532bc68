"""The table of the causes. Slugs and codes are a contract and never change meaning.

NT1xx data · NT2xx forward maths · NT3xx backward maths · NT4xx precision · NT5xx optimisation ·
NT6xx state · NT7xx distributed and platform · NT8xx configuration · NT9xx checkpoint files

The checks of `nantrap doctor` and the rules of `nantrap data` stand in `incident/checks.py`. The page of a code is
`pages/NT203.md`. The rule that recognises a cause is a function in `causes/rules` with `@rule("its_slug")`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from nantrap.errors import UsageError

FAMILIES: Final = MappingProxyType(
    {
        "NT0": "unknown",
        "NT1": "data",
        "NT2": "forward maths",
        "NT3": "backward maths",
        "NT4": "precision",
        "NT5": "optimisation",
        "NT6": "state",
        "NT7": "distributed and platform",
    }
)
"""The first three characters of a code, and what its family is called."""


class Code(NamedTuple):
    """One cause.

    Attributes:
        code: its stable code.
        slug: its stable name.
        risk: what follows if nothing is done. High: it happens in every step, or it destroys the weights or the run
            silently. Low: batches like this one are lost. Medium: everything between.
        precedence: which cause is named first when two are equally well supported: the one with the smaller number,
            which is the earlier one in the chain of events. 1xx was bad before the step, or was written by other code.
            2xx is exact arithmetic on what an operation was given. 3xx is a buffer that the forward pass spoiled. 4xx
            is precision: decided by the exact result against the limit of the dtype, or by a constant that was
            rounded. 5xx are the steps before: the operation that overflowed is only where it shows. 6xx is the
            mathematics of one operation. 7xx is the platform, named only when nothing else explains the failure.
        title: the cause in one line.
    """

    code: str
    slug: str
    risk: Literal["high", "medium", "low"]
    precedence: int
    title: str

    @property
    def family(self) -> str:
        """`forward maths` for `NT203`."""
        return FAMILIES[self.code[:3]]


CAUSES: Final = (
    # the state before the step
    Code(
        "NT601",
        "uninitialised_memory",
        "high",
        115,
        "a parameter, a buffer or the result of an operator was never written",
    ),
    Code("NT603", "corrupt_checkpoint", "high", 120, "the weights were non-finite when they were loaded"),
    Code("NT602", "corrupt_optimizer_state", "high", 125, "the optimizer state was bad before the step"),
    Code("NT605", "bn_buffers_poisoned", "high", 305, "a buffer updated in the forward pass holds non-finite values"),
    Code("NT606", "ema_poisoned", "high", 130, "the averaged weights hold non-finite values"),
    Code("NT607", "state_overwritten", "high", 135, "the program itself wrote a non-finite value into its own state"),
    # the batch
    Code("NT101", "bad_input_data", "medium", 110, "the batch holds values that no model can train on"),
    Code("NT103", "empty_reduction", "low", 220, "a mean or quotient was taken over zero elements"),
    Code("NT104", "ctc_infeasible_alignment", "low", 210, "a CTC target does not fit into its input"),
    Code("NT105", "input_out_of_scale", "medium", 230, "a batch or target lies in another scale than the others"),
    Code("NT102", "label_out_of_range", "high", 225, "a target lies outside the range its loss accepts"),
    # precision
    Code(
        "NT403",
        "mask_overflow",
        "medium",
        405,
        "a mask value near the dtype's limit overflowed when something was added",
    ),
    Code("NT404", "eps_underflow_half", "medium", 425, "a value or an epsilon is rounded away in half precision"),
    Code("NT402", "fp16_loss_overflow", "medium", 410, "the loss was reduced in half precision and overflowed"),
    Code("NT401", "fp16_forward_overflow", "medium", 435, "an activation exceeded the range of float16 or float8"),
    Code("NT405", "adam_eps_underflow_half", "high", 415, "Adam's eps is zero in the precision of its state"),
    Code("NT406", "optimizer_constant_rounding", "high", 420, "an optimizer constant rounds to one in its precision"),
    Code(
        "NT407",
        "loss_scale_misuse",
        "medium",
        430,
        "the loss scale overflowed, collapsed or was applied in the wrong order",
    ),
    # one operation of the forward pass
    Code("NT203", "softmax_fully_masked_row", "medium", 205, "softmax over a row in which every position is masked"),
    Code("NT201", "log_of_zero", "medium", 615, "the logarithm of zero gave -Inf"),
    Code("NT204", "zero_times_inf", "medium", 625, "zero times infinity, or infinity minus infinity, gave NaN"),
    Code("NT206", "std_of_one_element", "low", 215, "an unbiased standard deviation of a single element"),
    Code("NT208", "domain_error", "medium", 655, "a function was given an argument for which it is not defined"),
    Code("NT202", "division_by_zero", "medium", 630, "a division by exactly zero"),
    Code(
        "NT205", "exp_overflow", "medium", 650, "exp, or a function that grows like it, exceeded the range of its dtype"
    ),
    Code("NT207", "exploding_recurrence", "medium", 645, "one forward pass multiplied its values again and again"),
    # one operation of the backward pass
    Code(
        "NT304",
        "degenerate_linalg_backward",
        "medium",
        620,
        "a matrix with a repeated or zero spectrum was decomposed or inverted",
    ),
    Code("NT303", "where_unselected_branch", "medium", 605, "a branch that was not selected put NaN into the gradient"),
    Code("NT302", "arccos_boundary", "medium", 610, "the derivative of acos or asin is infinite at ±1"),
    Code("NT301", "singular_gradient_at_zero", "medium", 635, "the derivative is infinite at exactly zero"),
    # the steps before
    Code("NT501", "lr_too_high", "high", 515, "the learning rate is beyond the stability limit"),
    Code("NT604", "resume_lr_jump", "high", 505, "the learning rate jumped"),
    Code("NT503", "grad_norm_overflow", "medium", 520, "the norm of finite gradients overflowed"),
    Code("NT502", "exploding_gradient", "high", 660, "the gradients grew step by step until they overflowed"),
    Code("NT504", "bad_initialisation", "high", 640, "the first forward pass is already far outside any useful range"),
    Code("NT505", "dead_training", "high", 715, "nothing is learned: the updates are exactly zero"),
    # the platform
    Code("NT702", "hardware_fault", "high", 705, "the same operation gave different results on the same operands"),
    Code(
        "NT704", "backend_or_kernel_bug", "high", 710, "one kernel is wrong on inputs for which the reference is right"
    ),
    Code("NT703", "compiler_bug", "high", 140, "the compiled model differs from the eager one"),
    Code("NT701", "rank_divergence", "high", 105, "the ranks hold or decided different things"),
    # what remains
    Code("NT000", "unknown", "medium", 999, "no cause could be established"),
)
"""In the order in which the rules are asked: cheap questions come first, because trials are numbered and limited."""

_BY_CODE: Final = sorted(CAUSES)
BY_SLUG: Final = MappingProxyType({entry.slug: entry for entry in _BY_CODE})
BY_CODE: Final = MappingProxyType({entry.code: entry for entry in _BY_CODE})


def lookup(code_or_slug: str) -> Code:
    """Find a cause by code (`NT203`, `nt203`) or slug (`softmax_fully_masked_row`)."""
    entry = BY_CODE.get(code_or_slug.upper()) or BY_SLUG.get(code_or_slug.lower())
    if entry is None:
        raise UsageError(f"there is no cause {code_or_slug!r}; `nantrap explain` lists every code and slug")
    return entry
