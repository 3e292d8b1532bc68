"""Further pairs, as in `sentence_rows`: what is said, of which program it is true, of which it is false."""

from __future__ import annotations

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("a likelihood below zero with labels up to 9", "a cross-entropy by hand with labels up to 9"): (
        "if this is a cross-entropy",
    ),
    ("a cross-entropy by hand with labels up to 9", "a likelihood below zero with labels up to 9"): (
        "the loss multiplies it by what a logarithm is taken of",
    ),
    ("void pixels of 255 in a cross-entropy by hand", "a cross-entropy by hand with labels up to 9"): (
        "the loss multiplies it by a logarithm",
    ),
    (
        "void pixels of 255 in a cross-entropy by hand, two lines",
        "void pixels of 255 in a cross-entropy by hand",
    ): ("not decided against label_out_of_range, which comes earlier",),
    ("void pixels of 255 in a cross-entropy by hand", "log of zero"): (
        "comes earlier or is more exact, and is named first",
    ),
    ("an average of the weights in half", "a statistic in half"): (
        "a copy of a trained weight, is kept in float16 and overflowed",
        "a copy of weights does not need to be smaller than the weights",
    ),
    ("an average of the weights in half", "two large activations in half"): (
        "with slow_weight in float32 the step is finite",
        "into slow_weight; float16 ends at 65504",
    ),
    ("a statistic in half", "two large activations in half"): (
        "energy is kept in float16, and a value beyond its range was written into it",
    ),
    ("logsumexp of a masked row", "label smoothing on a masked class"): (
        "over a row in which every position is masked is -Inf",
        "are -inf everywhere, and it gave -Inf there",
    ),
    ("a target longer than its input", "every label ignored"): ("repeated neighbours needs at least",),
    ("svd of the identity", "root of zero"): ("of its largest value",),
    ("qr of a zero column", "root of zero"): ("of the largest",),
    ("division by zero", "log of zero"): ("; blank or constant inputs are the usual reason",),
    ("an update divided by a norm of 0", "Adam's eps in half"): ("of something, which is exactly 0",),
    ("a recurrence", "exp overflows"): (
        "multiplied its values by about",
        "at the same line gave",
        "the factor per round is",
    ),
    ("gradients that grow alone", "exp overflows"): (
        "at one line gave gradients of",
        "the values at that line stay below",
        "rounds of a loop",
    ),
    ("gradients that grow, and a loss in its range", "a recurrence"): ("multiplies in each round",),
    ("a root with an eps of 1e-8 in half", "an eps of 1e-8 in half"): (": the slope of",),
    ("two masks of finfo.min", "two large activations in half"): ("adds to a mask of -",),
    ("a loss summed in half", "two masks of finfo.min"): (", the limit is 65504",),
    ("two large activations in half", "an eps of 1e-8 in half"): ("the float32 result of",),
    ("weights far too large", "a rate too high"): ("input by more than 4;", "multiplies by about"),
    ("masks of 255", "percent for shares"): ("targets lie in", "targets clamped to"),
    ("masks of 255", "negative targets of a divergence"): (
        "in the steps since an older state",
        "the loss had fallen to",
    ),
    ("percent for shares", "masks of 255"): ("brought into [0, 1]",),
    ("a rate too high", "exp overflows"): ("before the failure",),
    ("weights bad from the start", "a row written between two steps"): ("If nothing was loaded, look at what gives",),
    ("a negative second moment", "Adam's eps in half"): (": the square root of that is NaN",),
    ("nothing was learned for long", "exp overflows"): ("nothing has been learned since step",),
    ("fails once", "one sample alone"): (
        "either something the step reads was not put back",
        "the place is read from the graph of the failed pass",
        "the failure does not repeat in it",
    ),
    ("a kernel of another library", "exp overflows"): ("with a plain PyTorch version on these inputs",),
    ("a root next to zero", "root of zero"): ("next to zero; what it divides by is as small as",),
    ("root of zero", "the end of acos"): (", changes nothing)",),
    ("a cosine rounded beyond 1", "the end of acos"): ("was given values beyond ±1 at",),
    ("where after log", "root of zero"): (", and so it is where it leaves", "the local derivative of"),
    ("a bit of an exponent that flipped", "a row written between two steps"): ("the one value of",),
    ("Adam's eps in half", "exp overflows"): ("the step itself is finite, only its update is not",),
    ("a batch written in place", "one sample alone"): ("so the replay does not begin with the same values",),
    ("nan in a cached table", "nan in the batch"): ("It was made before the replay",),
    ("qr of a zero column", "svd of the identity"): ("the step draws random numbers, and a part of the batch",),
    ("a rate of -1 in lgamma", "log of zero"): ("no cause could be established",),
    ("a static scale of 2**20", "a factor of 1e5 before a square in half"): ("the loss is multiplied by",),
    ("a factor of 1e5 before a square in half", "a static scale of 2**20"): (
        "a gradient exceeds the range of float16 in the backward pass",
        "with the loss divided by 65,536 the gradients are finite",
        "the loss divided by 65,536: finite",
        "which lowers the scale automatically, also below 1",
    ),
    ("a batch of one divided by its std", "std of one"): (
        "with a deviation that is 1e-05 for one element the step is finite",
        "a deviation of 0 gives 0/0 next",
    ),
    ("a weight of Inf that NumPy computed", "label smoothing on a masked class"): (
        "aten.mul was given Inf as a plain number, not as a tensor",
        "the number was computed before: by Python, by NumPy, or by .item() of a tensor",
        "check what computes that number",
    ),
    ("label smoothing on a masked class", "a weight of Inf that NumPy computed"): (
        "that was put there on purpose (a mask) reached the loss",
        "comes from a constant of the program; no operation made one",
    ),
    ("a negative row of SparseAdam's second moment", "a negative second moment"): (
        "rows of the second moment are negative at",
    ),
    ("a rate that a schedule raises", "a rate that jumps in the step that fails, two lines"): (
        "the learning rate jumped from",
    ),
}
