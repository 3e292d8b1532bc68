"""What is said, by the program of which it is true and one next to it of which it is false."""

from __future__ import annotations

PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("nan in the batch", "exp of one sample"): (
        "without that sample the step is finite",
        "the batch without sample 1: finite",
    ),
    ("svd of the identity", "qr of a zero column"): (
        "the smallest gap in the spectrum is",
        "with a repeated or zero spectrum",
    ),
    ("qr of a zero column", "svd of the identity"): (
        "the smallest value on that diagonal is",
        "of a singular matrix is infinite",
    ),
    ("std of one", "division by zero"): (
        "an unbiased standard deviation over one element is 0/0",
        "with a deviation that is 0 for one element the step is finite",
    ),
    ("root of a negative number", "log of zero"): ("with the argument kept inside the domain the step is finite",),
    ("exp overflows", "cosh overflows"): ("aten.exp was given",),
    ("a recurrence", "gradients that grow alone"): ("-> Inf within one forward pass",),
    ("gradients that grow alone", "a recurrence"): (
        "-> Inf within one backward pass",
        "only the slope grows",
        "the gradient was multiplied by about",
    ),
    ("a small probability in half", "an eps of 1e-8 in half"): ("rounded away in float16",),
    ("Adam's eps in half", "an eps of 1e-50"): (
        "the same update in float32 is finite",
        "eps = 1e-08 is 0 in float16",
    ),
    ("an eps of 1e-50", "Adam's eps in half"): (
        "the same update with eps=1e-8 is finite",
        "eps = 1e-50 is 0 in float32",
    ),
    ("a rounded beta", "Adam's eps in half"): (
        "divides by a single value that is exactly 0",
        "weights, gradients and state in float32 do not clear it",
    ),
    ("a rate too high", "a rate too high, two lines"): (
        "(the same steps stay finite at 5)",
        "the same batches with a tenth of the learning rate stay finite",
        "is beyond the stability limit",
    ),
    ("a rate too high, two lines", "a rate too high"): (
        "(for example to 5)",
        "the learning rate of 50 may be too high",
        "the loss was computed again from its source",
    ),
    ("a damaged file read in the step", "weights bad from the start"): (
        "load_state_dict wrote the model",
        "inside this step",
    ),
    ("every label ignored", "class weights of 0"): (
        "are -100 (ignored): the mean is 0/0",
        "the gradients are all zero",
    ),
    ("class weights of 0", "every label ignored"): ("the weights of all classes that occur are 0",),
    ("a mean of nothing", "a mask that selects nothing"): ("was given an empty tensor of shape",),
    ("the end of acos", "root of zero"): ("is infinite at ±1",),
    ("root of zero", "where after log"): ("or an eps inside: sqrt(x + 1e-12)",),
    ("where after log", "root of zero"): (
        "the branch of log that was not selected put NaN into the gradient",
        "with an argument that is safe on both branches the step is finite",
    ),
    ("a codebook replaced by 0/0", "a running average that swallowed Inf"): ("the forward pass wrote codes:",),
    ("percent for shares", "an ignore value of 255 in a focal loss"): ("(percent need / 100)",),
    ("a row written between two steps", "a buffer of NaN by design, and an exp that overflows"): (
        "it was finite after the last step",
        "by the program itself",
    ),
    ("a recurrence and a loss that grows", "a recurrence that the updates made grow"): (
        "with the weights of step 0 the step fails at the same operation",
    ),
    ("a teacher written between two steps", "a row written between two steps"): (
        "it was finite after the last good step, and was written since",
        "the non-finite values that the program wrote into 1.weight were replaced by the last finite ones",
    ),
    ("a teacher written between two steps", "a codebook replaced by 0/0"): ("it was finite after the last good step",),
    ("a buffer of NaN by design, and an exp that overflows", "a row written between two steps"): ("exp of ",),
    ("targets that are all NaN, through nanmean", "closed gates over their sum"): ("a quotient over a count of zero",),
    ("a bit of an exponent that flipped", "a rate too high"): (
        "the program wrote it, or a bit of it flipped in memory",
        "the other 7 values of 2.weight stay within",
        "with that one value set to 0 the step is finite",
    ),
    ("a target longer than its input", "a cross-entropy by hand with labels up to 9"): (
        "needs 9 frames for its target, the input has 6",
    ),
    ("a target longer than its input", "a blank of probability 0 in a sequence that fits"): (
        "1 of 2 targets do not fit",
        "nantrap.ops.ctc_loss, which leaves such samples out",
    ),
    ("a sentinel of 1e30", "one value of 1e25"): ("the batch holds a value that is no measurement",),
    ("a sentinel of 1e30", "a batch times 1e20"): ("replace the sentinel",),
    ("nan in the batch, two lines", "a loop that divides its batch, two lines"): (
        "the batch is non-finite before the forward pass",
        "clean or drop the sample",
    ),
    ("an ignore value of 255 in a focal loss", "percent for shares"): (
        "and the loss is written for labels of 0 and 1",
    ),
    ("an ignore value of 255 in a focal loss", "root of a negative number"): (
        "(an ignore value?)",
        "holds as well; label_out_of_range comes earlier",
    ),
    ("an ignore value of 255 in a focal loss", "a root of the weights in the update"): (
        "was given 1 negative value, for which",
    ),
    ("a count of -1", "a rate of -1 in lgamma"): (
        "holds -1 among values of 0 and above",
        "where batch[1] is negative",
        "clamped to 0 and above the step is finite",
        "(a missing value?)",
    ),
    ("a cross-entropy by hand with labels up to 9", "a rate too high"): (
        "holds values up to 9, and the loss fell below zero",
    ),
    ("negative targets of a divergence", "a count of -1"): ("xlogy accepts [0, inf)",),
    ("negative targets of a divergence", "targets a little outside, and a log of zero"): (
        "was given 1 target outside",
        "with targets in [0, inf) the same steps are finite",
    ),
    ("targets a little outside, and a log of zero", "negative targets of a divergence"): (
        "the logarithm of zero gave -Inf",
    ),
    ("a value of the batch that moved its units", "exp of one sample"): (
        "age reaches 7227; in the 4 batches before it stayed within",
    ),
    ("ages in days, two lines", "exp of one sample"): ("batch reaches 7227",),
    ("a temperature of 0", "a temperature that a tensor holds"): (
        "divides by a plain number that is exactly 0",
        "a division by the constant 0",
        "the constant must not become 0",
    ),
    ("a temperature that a tensor holds", "a temperature of 0"): (
        "the denominator is exactly 0 at 6 of 6 places",
        "with a floor under the denominator the step is finite",
    ),
    ("a denominator whose quotient goes into a log", "a temperature that a tensor holds"): (
        "keep the denominator from 0: x / (y + eps)",
        "nantrap.ops.safe_divide in line 15: not finite",
        "a denominator kept from 0 in line 15: finite",
    ),
    ("a weight norm of zeros", "a weight norm whose length is Inf"): (
        "a weight norm divides by the length",
        "1 of 3 rows of v are exactly 0",
        "do not set a weight-normed layer to zeros",
    ),
    ("a division by zero in half", "an eps of 1e-8 in half"): (
        "a division by exactly zero",
        "the step is as bad in float32",
    ),
    ("a cosine rounded beyond 1", "an angle of 1.0005"): (
        "rounding moved it beyond ±1",
        "by 2.38e-07 at most",
    ),
    ("a cosine rounded beyond 1", "the end of acos"): ("kept within ±(1 - 1e-6) the step is finite",),
    ("an angle of 1.0005", "the end of acos"): ("acos was given 1.00049996, for which it is not defined",),
    ("softplus by hand", "exp of one sample"): (
        "computed in log space the step is finite",
        "softplus(x) instead of log(1 + exp(x))",
    ),
    ("exp of one sample", "samples that fail one by one"): ("only sample 4 reaches it",),
    ("samples that fail one by one", "exp of one sample"): ("0, 1, 2, 3, 4, 5 and 2 others reach it",),
    ("exp of one sample", "softplus by hand"): ("with a bounded argument the step is finite",),
    ("a weight of 0 for a term that is Inf", "entropy of masked logits"): (
        "a plain number that is exactly 0 was multiplied by Inf",
    ),
    ("entropy of masked logits", "a weight of 0 for a term that is Inf"): (
        "at all 6 bad places one factor is 0 and the other Inf",
    ),
    ("a masked matrix in a product", "entropy of masked logits"): ("one matrix holds Inf where the other holds 0",),
    ("label smoothing on a masked class", "a loss that overflows to Inf in a sum"): (
        "every Inf in the step comes from a constant",
        "reached the loss through aten.sum",
    ),
    ("label smoothing on a masked class", "entropy of masked logits"): ("any weight times Inf is Inf or NaN",),
    ("every key masked", "a row of +Inf in a softmax"): (
        "in which every position is masked",
        ", from sample 4",
        "1 of 6 rows are -inf everywhere, and exactly those rows",
        "softmax of such a row is 0/0",
        "give the row one valid key",
    ),
    ("an inverse of a singular matrix", "svd of the identity"): (
        "aten.linalg_inv_ex was given a singular matrix",
        "its smallest singular value is 0 of its largest",
        "with 1e-3 added to its diagonal the step is finite",
        "use lstsq or pinv",
        "1e-3 added to the diagonal of the matrix in line",
    ),
    ("an embedding with a bad row that is used late", "a row written between two steps"): (
        "weight was non-finite before step 0 already",
        "it took no part in step 0, which was applied",
        "initialise weight as a whole",
    ),
    ("a decay that bfloat16 rounds to 1", "a rounded beta"): (
        "the weight of a new gradient, 1 - beta, is exactly 0: beta was rounded to 1 in bfloat16",
        "what it divides by was computed with 1 minus a number that is exactly 1 in bfloat16",
        "aten.div divides by exactly 0 at 12 of 12 places",
        "the same update in float32 is finite",
    ),
    ("a norm that the optimizer computes of gradients of 1e20", "gradients that grow alone"): (
        "overflows when the optimizer squares it",
    ),
    ("rows of an empty queue copied into a codebook", "a row written between two steps"): (
        "aten.index_put_ writes non-finite values over it inside the step",
    ),
    ("a maximum over padding only", "logsumexp over padding only"): (
        "a maximum over a row in which every position is masked is -Inf",
        "18 of 18 rows that aten.amax was given are -inf everywhere, and it gave -Inf there",
        "aten.addmm was given that -Inf",
    ),
    ("logsumexp over padding only", "a maximum over padding only"): (
        "logsumexp over a row in which every position is masked is -Inf",
    ),
    ("logsumexp over padding only", "entropy of masked logits"): (
        "with 0 in the rows that are masked everywhere the step is finite",
        "x.masked_fill(mask.all(dim, keepdim=True), 0.0)",
    ),
    ("a product beyond float16 and a logarithm of zero behind it", "a layer beyond float16"): (
        "aten.mm in the loss exceeded the range of float16",
        "in float32 it is finite, and the step fails further on: forward, aten.log in line",
        "what fails after it must be mended too",
    ),
    ("every key masked", "two masks of finfo.min"): ("with a masked softmax the step is finite",),
    ("a mask that selects nothing, two lines", "two lengths of 0, two lines"): (
        "and was made by sum, the numerator is 0 too",
    ),
    ("two lengths of 0, two lines", "a mask that selects nothing, two lines"): ("made by aten.max",),
    ("log of a sigmoid", "log of zero"): (
        "with logsigmoid(x) instead of log(sigmoid(x)) the step is finite",
        "binary_cross_entropy_with_logits, instead",
    ),
    ("log of zero", "log of a sigmoid"): ("log_softmax(x) instead of log(softmax(x)), which stays finite",),
    ("where after a root of a negative number", "where after log"): (
        "and the loss is finite: dropped",
        "and 0 · NaN = NaN",
    ),
    ("where after log", "where after a root of a negative number"): ("and 0 · Inf = NaN",),
    ("a root next to zero", "root of zero"): (
        "leaves the range of the dtype next to zero",
        "what it divides by is as small as",
    ),
    ("root of zero", "a root next to zero"): ("what it divides by is 0 at 1 of 6 places",),
    ("gradients that grow, and a loss in its range", "a rate too high"): (
        "while the loss stayed in its range",
        "the loss was between 0.187 and 0.255",
        "a tenth of the learning rate does not help",
    ),
    ("gradients that grow, and a loss in its range", "a rate that is far too low to matter"): (
        "-> 4.43e+23 -> 3.99e+31 -> nan",
    ),
    ("a layer norm next to zero in half", "a root with an eps of 1e-8 in half"): (
        "makes a gradient that float16 cannot hold",
        "was computed almost at 0",
    ),
    ("a layer norm next to zero in half", "a static scale of 2**20"): (
        "without that factor it fits",
        "with an eps of 1e-05 there the step is finite",
    ),
    ("two masks of finfo.min", "two large activations in half"): (
        "a mask of finfo.min plus something",
        "so the sum is -Inf",
        "never add two such masks",
    ),
    ("two large activations in half", "a layer beyond float16"): ("exceeded the range of float16: 80000 > 65504",),
    ("a loss summed in half", "a product of two numbers of the batch in half"): (
        "the loss was reduced in float16 and overflowed",
        "runs in float16 outside the model",
        "with every operation in float32 the step is finite",
        "compute the loss in float32",
    ),
    ("a loss summed in half", "a layer beyond float16"): ("what it was given is finite",),
    ("a layer beyond float16", "a product of two numbers of the batch in half"): (
        "module 0 exceeded the range of float16",
    ),
    ("a layer beyond float16", "a division by zero in half"): (
        "above float16's limit of 65504",
        "the same step in float32 is finite",
        "every operation in float32: finite",
    ),
    ("a root with an eps of 1e-8 in half", "a root with an eps of 1e-3 in half"): (
        "an epsilon of 1e-08 has no effect in float16",
        "so nothing keeps the argument of aten.sqrt from 0",
        "SqrtBackward0: its derivative is infinite at exactly 0",
    ),
    ("a static scale of 2**20", "a scale of 200 and a root of zero"): (
        "a loss scale of 1.04858e+06 overflows the gradients",
        "with a scale of 1 the gradients are finite",
        "a loss scale of 1 instead of 1.04858e+06: finite",
    ),
    ("a static scale of 2**20, two lines", "a scale of 200 and a root of zero"): (
        "the loss is multiplied by 1.04858e+06 before backward",
    ),
    ("a scale of 200 and a root of zero", "a static scale of 2**20"): ("a loss scale of 1 does not help",),
    ("a gradient of 1e25 under Adam", "a norm that overflows"): (
        "overflows when the optimizer squares it",
        "the weight would never move again",
        "its square, 1.11e+49, is beyond 3.4e+38",
    ),
    ("a norm that overflows", "a gradient of 1e25 under Adam"): ("but their norm overflows",),
    ("a bias correction in bfloat16", "a trust ratio at a rate of exactly 1"): (
        "a bias correction 1 - beta^t is exactly 0",
        "computed as 1 minus a number that is exactly 1",
    ),
    ("a rounded beta", "a trust ratio at a rate of exactly 1"): ("beta of the optimizer is exactly 1 in bfloat16",),
    ("an update divided by a number that is 0", "a rounded beta"): ("check what the optimizer divides by",),
    ("a negative second moment", "a root of the weights in the update"): (
        "the second moment is negative at 1 of 12 places",
    ),
    ("a nan in the first moment", "a root of the weights in the update"): (
        "the optimizer state was bad before the step",
        "weights and gradients are finite",
        "with a fresh optimizer state the same update is finite",
    ),
    ("a root of the weights in the update", "a rounded beta"): ("for which it is not defined, in the update",),
    ("a rate raised for good reason, and a bad sample", "a rate that a schedule raises"): (
        "the learning rate before the jump does not help",
    ),
    ("a rate that a schedule raises", "a rate raised for good reason, and a bad sample"): (
        "with the learning rate before the jump the same steps stay finite",
        "the learning rate before the jump: finite",
    ),
    ("a rate that is far too low to matter", "a rate too high"): (
        "a tenth of the learning rate does not help",
        "a tenth of the learning rate from an older state on: not finite",
    ),
    ("weights far too large", "a large table and a log of zero at the first step"): (
        "the weights are initialised far too large",
        "with those weights rescaled the step is finite",
        "the oversized weights divided by their gain: finite",
    ),
    ("weights far too large", "a weight norm whose length is Inf"): (
        "20 weights multiply the scale of their input",
        "magnitudes on the way: ",
    ),
    ("a weight norm whose length is Inf", "weights far too large"): ("1 weight multiplies the scale of its input",),
    ("a large table and a log of zero at the first step", "weights far too large"): (
        "the step stays bad with rescaled weights",
    ),
    ("gradients of 1e-30", "nan in the batch"): ("the gradient norm is exactly 0",),
    ("memory that was never filled", "a logarithm of zero as initial value"): (
        "scale was never initialised",
        "no write to it was counted since it was made",
    ),
    ("rows that were never filled", "memory that was never filled"): (
        "a part of weight was never initialised",
        "whole rows or columns of it are bad",
        "a file may hold the same values",
    ),
    ("one layer that is NaN in a file", "rows that were never filled"): ("all of it is bad",),
    ("a logarithm of zero as initial value", "memory that was never filled"): (
        "was made with a non-finite value by the program itself",
    ),
    ("a logarithm of zero as initial value", "weights bad from the start"): (
        "before the first step, and no write to it was counted",
    ),
    ("a state saved after a NaN step", "weights bad from the start"): ("a state that was saved after a bad step",),
    ("weights bad from the start", "a state saved after a NaN step"): ("what wrote these values was not seen",),
    ("a damaged file read in the step", "a healthy file, and a division after it"): (
        "and left it non-finite",
        "was non-finite when it was loaded",
    ),
    ("a buffer that was bad before", "a running average that swallowed Inf"): ("the buffer was bad before this step",),
    ("a buffer that was bad before", "a codebook replaced by 0/0"): ("a skipped optimizer step does not undo",),
    ("a running average that swallowed Inf", "a buffer that was bad before"): (
        "the forward pass made energy non-finite; loss and gradients are finite",
    ),
    ("an average that divides by 0", "a frozen table that a hook of the update writes"): (
        "the averaged weights are non-finite",
        "update it only after applied steps",
    ),
    ("an average that divides by 0", "a state saved after a NaN step"): ("what the optimizer trains is finite",),
    ("a frozen table that a hook of the update writes", "an average that divides by 0"): (
        "after the update, and the optimizer does not train it",
    ),
    ("memory of the step that was never filled", "a row copied in the step"): ("no operation that was seen wrote it",),
    ("a step that writes a constant over its weight", "a row written between two steps"): (
        "aten.fill_ writes non-finite values over it inside the step",
        "set to 0 before the step: not finite",
    ),
    ("a bit that flipped", "a row written between two steps"): (
        "has the bits of a damaged number",
        "its bits are not those that arithmetic writes for NaN",
    ),
    ("a bit that flipped", "a row copied in the step"): ("no write to it was counted; NumPy",),
    ("a kernel of another library", "division by zero"): ("is not an operation of PyTorch",),
    ("a kernel of another library", "a temperature of 0"): ("the kernel sentences.halve made non-finite values",),
    ("fails once", "a generator that the loss holds"): ("the failure did not repeat: run again twice",),
    ("fails once", "a different failure each time"): ("two replays are finite and give the same loss",),
    ("a generator that the loss holds", "fails once"): ("what a replay cannot put back: turn (generator)",),
    ("a counter outside the model", "a loss that overflows to Inf in a sum"): (
        "the failure did not repeat, so nothing could be tried",
    ),
    ("a loss that overflows to Inf in a sum", "a counter outside the model"): (
        "the inputs of the operation fit no rule",
    ),
    ("a different failure each time", "log of zero"): (
        "no trial counts: the unchanged step fails in another way",
        "measured in a replay that did not fail as the step did",
        "the replay differs: the loss was nan and is -inf in the replay",
        "not run: the unchanged step fails in another way",
    ),
    ("a different failure each time", "a batch written in place"): (
        "it reads what cannot be put back: turn (range_iterator)",
    ),
    ("a target longer than its input", "exp of one sample"): ("some parts of the batch could not be run alone",),
    ("a sentinel of 1e30", "exp of one sample"): ("each of the 6 samples of the batch fails alone, so no single one",),
    ("a rate of -1 in lgamma", "a count of -1"): ("does not fail again when it is rebuilt from its samples",),
    ("a nan in the first moment", "an update divided by a norm of 0"): ("a fresh optimizer state: finite",),
    ("a value of the batch that moved its units", "one value of 1e25"): (
        "the batch brought to the range of those before it: finite",
    ),
    ("a division by zero in half", "a layer beyond float16"): ("every operation in float32: not finite",),
    ("Adam's eps in half", "a rounded beta"): ("the update in float32: finite",),
    ("an eps of 1e-50", "an optimizer that divides by the gradient"): ("eps=1e-08 in every parameter group: finite",),
}
