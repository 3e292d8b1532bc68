"""Pairs as in `sentence_rows`, of programs at the edge of what a sentence is true of, and of what is advised."""

from __future__ import annotations

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    # ---- two faults in one batch: what is said of one sample is not said of the other
    ("nan in sample 1 and an empty sample 4", "nan in the batch"): ("without samples 1, 4 the step is finite",),
    ("nan in the batch", "nan in sample 1 and an empty sample 4"): ("without that sample the step is finite",),
    ("1e25 in sample 1 and an empty sample 4", "one value of 1e25"): (
        "reaches 1e+25 in sample 1, though",
        "without samples 1, 4 the step is finite",
    ),
    ("exp of sample 1 and a log of sample 4", "samples that fail one by one"): (
        "only sample 1 reaches it",
        "an argument bounded on both sides",
    ),
    ("samples that fail one by one", "exp of sample 1 and a log of sample 4"): (
        "only samples 0, 1, 2, 3, 4, 5 and 2 others reach it",
    ),
    ("a masked row of sample 1 and an empty sample 4", "a maximum over padding only"): (
        "gave NaN, from sample 1\n",
        "nantrap.ops.masked_softmax in line",
    ),
    # ---- labels and reductions
    ("labels that are ignored or have a weight of 0", "class weights of 0"): (
        "every label of the batch is ignored or has a class weight of 0",
    ),
    ("class weights of 0", "labels that are ignored or have a weight of 0"): (
        "every label of the batch has a class weight of 0",
    ),
    ("every label ignored", "labels that are ignored or have a weight of 0"): ("all 6 targets are -100 (ignored)",),
    ("class weights of 0", "a mean of nothing"): ("with the safe form the step is finite",),
    ("std of one", "std of nothing"): (
        "an unbiased standard deviation over one element",
        "with a deviation that is 0 for one element the step is finite",
    ),
    ("std of nothing", "std of one"): (
        "a reduction over no element",
        "aten.std was given an empty tensor",
        "skip the term when nothing is selected",
    ),
    ("variance of one", "std of one"): (
        "an unbiased variance over one element is 0/0",
        "with a variance that is 0 for one element the step is finite",
        "or nantrap.ops.safe_var(x)",
    ),
    ("a mask that selects nothing", "closed gates over their sum"): ("or divide by count.clamp(min=1)",),
    ("masks of 255", "percent for shares"): (
        "map the targets to [0, 1]",
        "an ignore value needs a mask",
        "a learning rate of 0 from an older state on: finite",
    ),
    ("percent for shares", "an ignore value of 255 in a focal loss"): ("holds values from ",),
    ("an ignore value of 255 in a focal loss", "percent for shares"): ("leave out the places where ",),
    ("a count of -1", "a rate of -1 in lgamma"): ("leave out the places where ",),
    ("a cross-entropy by hand with labels up to 9", "a likelihood below zero with labels up to 9"): (
        "with targets in [0, 1] the same steps are finite",
        "\nmap batch[1] to [0, 1] before the loss",
    ),
    ("a likelihood below zero with labels up to 9", "percent for shares"): ("the loss fell to ",),
    # ---- the range
    ("sinh of 90", "exp overflows"): ("in float32 it overflows above 89.42",),
    ("exp overflows", "cosh overflows"): ("in float32 it overflows above 88.72",),
    ("exp overflows", "a power of 2"): ("bound the argument (log-variances", "an argument bounded from above in line"),
    ("a product of nine factors in each row", "a product of fifty-four factors"): (
        "multiplies 9 factors above 1 with",
    ),
    ("a product of fifty-four factors", "a product of nine factors in each row"): (
        "multiplies 54 factors above 1 with",
    ),
    ("a product of nine factors in each row", "a recurrence"): (
        "these factors are 1e+05 on average, 1e+05 at most, and float32 ends",
        "add logarithms instead of multiplying",
    ),
    ("a power of -2", "a power of 2"): ("-2 to the power of 129 exceeds",),
    ("a power of 2", "a power of -2"): ("\n2 to the power of 129 exceeds",),
    ("a power of 2", "exp overflows"): (
        "at all 6 bad places power · log|base| is above 88.72",
        "with a bounded power the step is finite",
        "a base below 1 (a discount of 0.99",
        "a power bounded from above in line",
    ),
    ("a loop that grows in its last ten rounds only", "a recurrence"): (
        "multiplied its values by about 1e+04 in each of 10 rounds",
    ),
    ("a loop that squares", "a recurrence"): (
        "multiplied its values by more and more in each of",
        "the factor per round is 20.9 at first and 3.57e+10 at last",
    ),
    ("a recurrence", "a product of fifty-four factors"): ("normalise or gate the state in each round",),
    ("gradients that grow alone", "gradients that grow, and a loss in its range"): (
        "bound the factor of a round (tanh, a norm, a spectral bound)",
    ),
    ("gradients that grow, and a loss in its range", "gradients that grow alone"): (
        "clip the gradients (max_grad_norm",
    ),
    ("a gradient of 1e25 under Adam", "a norm that overflows"): (
        "a finite gradient of 3.33e+24 overflows when the optimizer squares it",
        "the steps before this one are finite again, and its update is not among them",
    ),
    ("a norm that overflows", "a gradient of 1e25 under Adam"): ("or take the norm in float32",),
    ("a batch times 1e20", "one value of 1e25"): (
        "with the batch brought to the usual scale the step is finite",
        "the batch in the usual scale: finite",
    ),
    ("one value of 1e25", "ages in days"): ("the batch is out of scale: batch reaches 1e+25",),
    ("ages in days", "one value of 1e25"): ("check the range of batch where the data are read",),
    # ---- products with Inf
    ("a masked matrix in a product", "Inf minus Inf in a matrix product"): (
        "zero times infinity gave NaN",
        "one matrix holds Inf where the other holds 0",
    ),
    ("Inf minus Inf in a matrix product", "a masked matrix in a product"): ("the inputs of the operation fit no rule",),
    ("entropy of logits that the batch masks", "entropy of masked logits"): (
        "it came in with batch[1] or a constant of the program (a mask)",
    ),
    ("entropy of masked logits", "entropy of logits that the batch masks"): (
        "it came in with a constant of the program",
    ),
    ("label smoothing on a class that the batch masks", "label smoothing on a masked class"): (
        "every Inf in the step comes from batch[1] or a constant of the program",
    ),
    ("label smoothing on a masked class", "label smoothing on a class that the batch masks"): (
        "every Inf in the step comes from a constant of the program",
    ),
    ("label smoothing on a masked class", "entropy of masked logits"): ("leave masked classes out of the sum",),
    ("entropy of masked logits", "label smoothing on a masked class"): ("select instead of multiplying",),
    # ---- poles
    ("a layer norm without an eps", "division by zero"): (
        "a normalisation divides by a deviation of exactly zero in module 0",
        "the variance is 0 in 1 of 6 groups, and its eps does not keep the root from 0",
        "with an eps of 1e-5 the step is finite",
        "an eps of 1e-5 in line",
    ),
    ("a weight norm of zeros", "division by zero"): (
        "a weight norm divides by the length of a direction that is all zeros",
        "1 of 3 rows of v are exactly 0",
    ),
    ("division by zero", "a layer norm without an eps"): (
        "add an eps inside (x / (y + eps))",
        "1 of 6 places, made by aten.std",
    ),
    ("a hand-written backward divides by zero", "division by zero"): (
        "in the backward of AbsBackward, written by hand",
    ),
    ("a root of zero that is differentiated twice, two lines", "division by zero, two lines"): (
        "that no line of it shows, such as one in a derivative",
        "with create_graph=True, look for a sqrt, a norm or a power at exactly 0",
    ),
    ("an update divided by a norm of 0", "a rounded beta"): ("add an eps to what the optimizer divides by",),
    ("a rounded beta", "an update divided by a norm of 0"): ("keep the optimizer's constants as Python floats",),
    ("the determinant of zeros", "log of zero"): (
        "the log-determinant of a singular matrix is -Inf in",
        "the determinant is exactly 0 for 1 of 6 matrices",
        "with 0.001 added on the diagonal the step is finite",
        "0.001 added on the diagonal in line",
        "keep the matrix invertible",
    ),
    ("logit of one", "log of zero"): ("an argument between 0 and 1 in line", "keep the argument between 0 and 1"),
    ("log of zero", "logit of one"): ("; or nantrap.ops.safe_log(x)",),
    ("targets a little outside, and a log of zero", "log of zero"): (
        "nantrap.ops.safe_log(x), or an argument that is kept from 0",
    ),
    ("a maximum over padding only", "a masked row of sample 1 and an empty sample 4"): (
        "0 in rows that are masked everywhere in line",
    ),
    ("root of a negative number", "a cosine rounded beyond 1"): ("a little inside: x.clamp(min=1e-12)",),
    ("a cosine rounded beyond 1", "root of a negative number"): ("a little inside: x.clamp(-1 + 1e-6, 1 - 1e-6)",),
    # ---- slopes
    ("the end of acos", "a steep acos under a loss of 1e37"): (
        "the derivative of acos is infinite at ±1",
        "x is exactly ±1 at",
        "with a bounded slope the step is finite",
        "clamp to ±(1 - 1e-6) (before torch 2.15",
    ),
    ("acosh of one", "the end of acos"): (
        "the derivative of acosh is infinite at 1",
        "AcoshBackward0 computes 1/√(x² - 1), and x is exactly 1 at 3 of 18 places",
        "an argument above 1 in line",
        "keep it above 1: x.clamp(min=1 + 1e-6)",
    ),
    ("the end of acos", "acosh of one"): ("computes 1/√(1 - x²)", "nantrap.ops.safe_acos"),
    ("acos of a cosine below -1", "a cosine rounded beyond 1"): ("acos was given -1.00000012: rounding moved it",),
    ("where after log1p", "where after log"): (
        "the derivative of log1p is infinite at exactly -1",
        "the local derivative of log1p",
        "nantrap.ops.safe_log(1 + x)",
        "log1p(x.clamp(min=-1 + 1e-6))",
    ),
    ("where after log", "where after log1p"): ("is infinite at exactly zero", "an eps outside, log(x) + eps"),
    ("where after log", "where after logit"): ("the derivative of log is infinite",),
    ("where after log", "root of zero"): (
        "select before the operation, not after it: log(torch.where(ok, x, 1.0)), then torch.where on the result; or ",
    ),
    ("root of zero", "where after log1p"): ("an eps outside, sqrt(x) + eps",),
    ("where after a root of negative numbers", "where after log"): (
        "aten.sqrt gave NaN at",
        "sqrt(torch.where(ok, x, 1.0)), then torch.where on the result\n",
    ),
    ("a layer norm next to zero in half", "a factor of 1e5 before a square in half"): (
        " multiplies the gradient by up to ",
        "a larger eps for a / b in line",
        "one that float32 holds may still be too small",
    ),
    ("a factor of 1e5 before a square in half", "a layer norm next to zero in half"): (
        "overflows in float16 though the forward pass is finite",
    ),
    ("a layer norm next to zero in half", "a cube of large numbers under weights in half"): (
        "next to zero makes a gradient that float16 cannot hold",
        "was computed almost at 0",
    ),
    ("a layer norm next to zero in half", "9,000,000 over one under weights in half"): (
        "the slope of a / b next to zero",
        "a / b was computed almost at 0",
    ),
    ("svd of the identity", "qr of a zero column"): ("add a small diagonal jitter before decomposing",),
    ("qr of a zero column", "svd of the identity"): ("add a small jitter before the factorisation",),
    # ---- half precision
    ("a small probability in half", "an eps of 1e-8 in half"): ("rounded away in float16: the argument of log",),
    ("a probability of 0 in half beside a factor of 1e-9", "an eps of 1e-8 in half"): ("rounded away in float16",),
    ("an eps of 1e-8 in half", "a probability of 0 in half beside a factor of 1e-9"): (
        "an epsilon has no effect in float16",
        "in float16 1e-08 is 0",
    ),
    ("an eps of 1e-8 in half", "atanh of a clamp in bfloat16"): ("an eps the dtype can hold (1e-4 for float16)",),
    ("atanh of a clamp in bfloat16", "an eps of 1e-8 in half"): ("an eps the dtype can hold (1 - 1e-2 for bfloat16)",),
    ("two masks of finfo.min", "two masks of -40,000 in half"): ("a mask of finfo.min plus something",),
    ("two masks of -40,000 in half", "two masks of finfo.min"): ("a mask of -4e+04 plus something is -Inf in float16",),
    ("two masks of -40,000 in half", "two large activations in half"): ("; the limit of float16 is 6.55e+04",),
    ("a square beyond float16, and gradients beyond it", "a square beyond float16, and a root of zero"): (
        "the gradients of float16 weights overflow even then",
        "keep the weights in float32 (autocast instead of model.half())",
    ),
    ("a square beyond float16, and a root of zero", "a square beyond float16, and gradients beyond it"): (
        "in float32 it is finite, and the step fails further on: backward, aten.div in line",
        "what fails after it must be mended too",
    ),
    ("a static scale of 2**20", "a factor of 1e5 before a square in half"): (
        "lowers the scale automatically, and pass it",
    ),
    ("Adam's eps in half", "an optimizer that divides by the gradient"): (
        "in float16, so it divides by zero",
        "what the update divides by is exactly 0 at",
    ),
    ("Adam's eps in half", "an eps of 1e-50"): ("keep the weights in float32 and use autocast",),
    ("an eps of 1e-50", "Adam's eps in half"): ("an eps that float32 can hold, in every parameter group",),
    # ---- the learning rate
    ("a rate of Inf", "a rate too high"): (
        "a learning rate of Inf makes the update non-finite",
        "lr=Inf in a parameter group of the optimizer; the loss and the gradients are finite",
        "the same update with a learning rate of 1e-06 is finite",
        "check what computes the learning rate",
    ),
    ("a loss that is maximised", "a rate too high"): (
        "with a far lower learning rate the loss still ends higher than without any update",
        "check the direction first",
    ),
    ("a rate too high", "a loss that is maximised"): ("a learning rate of 50 is beyond the stability limit",),
    ("a rate too high", "a rate that a schedule raises"): ("the loss went ",),
    ("a rate that a schedule raises", "a rate too high"): ("if a state was restored there",),
    ("weights far too large", "a rate too high"): ("initialise with a gain near 1",),
    # ---- the state and the platform
    ("weights bad from the start", "a row written between two steps"): (
        "names the newest healthy one; start from that",
    ),
    ("a negative second moment", "Adam's eps in half"): ("restore the optimizer state from an older checkpoint",),
    ("memory that was never filled", "a logarithm of zero as initial value"): (
        "initialise it (nn.init.xavier_uniform_",
    ),
    ("a logarithm of zero as initial value", "memory that was never filled"): (
        "check the expression that gives the initial value",
    ),
    ("a running average that swallowed Inf", "a codebook replaced by 0/0"): (
        "keep the buffer in float32, and reset it",
    ),
    ("a row copied in the step", "a row written past PyTorch in the step"): ("over it inside the step, in line",),
    ("a row copied in the step", "a bit of an exponent that flipped"): ("tensor.data, copy_ under no_grad, NumPy",),
    ("a bit of an exponent that flipped", "a row copied in the step"): (
        "roll back to an older state; look for what writes",
        "if nothing does and it happens again, test the memory",
    ),
    ("a bit that flipped", "a row written between two steps"): (
        "if it happens again at other places of the same device",
    ),
    ("fails once", "a generator that the loss holds"): (
        "makes the replay exact",
        "nothing: the same step once more: finite",
    ),
    ("nothing was learned for long", "nan in the batch"): ("look for a detach, a frozen layer",),
    ("nan in a cached table", "a counter outside the model"): (
        "the place is known; the tensor that was read there was bad before",
    ),
    # ---- what made a zero, and by what a loss is multiplied
    ("a weight of 0 after a where that selects all", "where after log"): ("and so it is where it leaves MulBackward0",),
    ("where after log", "a weight of 0 after a where that selects all"): (
        "and so it is where it leaves WhereBackward0",
    ),
    ("a diagonal that an index leaves out", "a weight of 0 after a where that selects all"): (
        "and so it is where it leaves IndexBackward0: they were not selected",
    ),
    ("a scale of 2**20 in a tensor", "a weight of 1,000,000 for one sample"): (
        "a loss scale of 1.04858e+06 overflows the gradients",
        "the loss is multiplied by 1.04858e+06 before backward",
    ),
    ("a weight of 1,000,000 for one sample", "a scale of 2**20 in a tensor"): (
        "a gradient exceeds the range of float16 in the backward pass",
    ),
    # ---- the update
    ("an update divided by a norm of 0", "an update divided by 0 times a norm"): (
        "the update divides by the norm of something, which is exactly 0",
    ),
    ("an update divided by 0 times a norm", "an update divided by a norm of 0"): (
        "the update divides by a single value that is exactly 0",
    ),
    ("an update that fails at every rate", "a rate of Inf"): (
        "a small learning rate does not help",
        "the same steps at the same learning rate fail earlier when they are run again",
    ),
    # ---- slopes, by the call
    ("the slope of a power at zero", "root of zero"): (
        "the derivative of x ** a with a < 1 is infinite at exactly zero",
        "an eps inside: (x + 1e-12) ** a (an eps outside, x ** a + eps, changes nothing)",
    ),
    ("the slope of hypot at zero", "root of zero"): ("nantrap.ops.safe_sqrt(a * a + b * b) in line",),
    ("the slope of a quotient at zero", "root of zero"): (
        "an eps inside: a / (b + 1e-6) (an eps outside, a / b + eps, changes nothing)",
    ),
    ("the slope of entr at zero", "the slope of xlogy at zero"): ("-nantrap.ops.xlogx(x) in line",),
    ("the slope of xlogy at zero", "the slope of entr at zero"): ("x * nantrap.ops.safe_log(y) in line",),
    ("the slope of xlogy at zero", "root of zero"): ("an eps inside: log(x + 1e-12)",),
    ("the slope of a selected power at zero", "the slope of a power at zero"): (
        "the branch of x ** a with a < 1 that was not selected",
        "torch.where(ok, x, 1.0) ** a, then",
    ),
    ("a root next to zero", "root of zero"): (
        "the argument of sqrt kept from zero in line",
        "keep the argument of sqrt further from zero, by a floor or an eps inside such as 1e-05",
    ),
    ("root of zero", "a root next to zero"): ("nantrap.ops.safe_sqrt(x) in line",),
    ("a slope of log1p next to -1", "where after log1p"): (
        "the derivative of log1p leaves the range of the dtype next to -1",
        "the argument of log1p kept from -1 in line",
    ),
    ("a logarithm that a floor does not help", "targets a little outside, and a log of zero"): (
        "keep the argument from 0 where it is made; a floor under the logarithm alone does not help",
    ),
    ("logit beyond one", "root of a negative number"): ("a little inside: x.clamp(1e-6, 1 - 1e-6)",),
    # ---- the two-line form, with a loss that cannot be computed again
    ("a mean over a mask of the loop, two lines", "a row over a mask of the loop, two lines"): (
        "0 divided by 0: perhaps a sum over a count, and nothing was selected",
        "numerator and denominator are single numbers, both exactly 0; what made them was not seen",
    ),
    ("an input that the loop made, two lines", "nan in the batch, two lines"): (
        "though what the loop took from its loader is finite: the code between the two made it",
        "guard.attempt(fn, batch) would allow a replay and trials",
    ),
    ("a target with a hole, two lines", "a target that the loop made, two lines"): (
        "a tensor that the loss reads without a gradient is non-finite: targets[2]",
        "clean or drop the sample where targets[2] is made",
    ),
    ("a copy written after the model ran, two lines", "a copy written before the model ran, two lines"): (
        "slow_weight, shaped and named like a trained weight, became non-finite in this step",
        "slow_weight was finite before the step",
        "the code around the model wrote slow_weight",
        "look at what writes slow_weight: an average needs float32 and a divisor that is not 0",
    ),
    ("a copy written before the model ran, two lines", "a copy written after the model ran, two lines"): (
        "before this step; it was finite after the last step",
    ),
    ("a factor of 2**17 before a square in half, two lines", "a factor of 1e5 before a square in half"): (
        ": the loss is probably scaled too high",
        "the two-line form cannot compute the loss again; guard.attempt can",
    ),
    ("a model whose replay ends without a word, two lines", "a copy written after the model ran, two lines"): (
        "the replay ended with StopIteration",
    ),
    ("a rate too high, two lines", "a rate too high"): (
        "no older state is kept from which the steps could be run again",
    ),
}
