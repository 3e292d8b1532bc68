"""The table of the checks: what `nantrap doctor` looks for in settings and source code, and `nantrap data` in files.

NT15x to NT16x data files · NT80x to NT82x configuration · NT85x to NT88x source code

The page of a check of doctor is `pages/NT851.md`, and its function has the decorator `@source_check` or
`@configuration_check` in `doctor/checks`. How grave a finding is depends on what was found, so the function says it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple


class CheckCode(NamedTuple):
    """A check of `nantrap doctor`: its stable code, its slug and its title."""

    code: str
    slug: str
    title: str

    @property
    def family(self) -> str:
        """`configuration` or `source code`."""
        return "configuration" if self.code < "NT850" else "source code"


class DataRule(NamedTuple):
    """A rule of `nantrap data`: its stable code, its slug, when it fires, and what to do about a finding."""

    code: str
    slug: str
    fires: str
    help: str

    def text(self) -> str:
        """The page that `nantrap explain` prints: there is no more to say than the row does."""
        return f"{self.code} {self.slug}: {self.fires}\n\nFix:\n    {self.help}\n\nFound by: nantrap data PATH..."


CHECKS: Final = (
    CheckCode("NT801", "precision_mismatch", "The trainer, the launcher and DeepSpeed name different dtypes"),
    CheckCode("NT802", "both_half_flags", "fp16 and bf16 are both switched on"),
    CheckCode("NT803", "fp16_without_loss_scaling", "float16 is used without a loss scaler"),
    CheckCode("NT804", "amp_without_dtype", "Mixed precision is switched on, but nothing says in which dtype"),
    CheckCode("NT805", "scaler_with_bf16", "A loss scaler is used exactly when training is in bfloat16"),
    CheckCode(
        "NT806",
        "explicit_no_overrides_launcher",
        'The code says mixed_precision="no" although the launcher asks for half precision',
    ),
    CheckCode("NT807", "static_loss_scale", "fp16 runs with a loss scale that never changes"),
    CheckCode(
        "NT808", "min_lr_as_factor", "A LambdaLR function returns a smallest learning rate where a factor is expected"
    ),
    CheckCode("NT809", "min_lr_above_lr", "The smallest learning rate is larger than the learning rate itself"),
    CheckCode("NT810", "lr_high", "The learning rate is far above what Adam can use"),
    CheckCode("NT811", "clip_ineffective", "The gradient is clipped at a norm that it never reaches"),
    CheckCode("NT812", "clip_missing", "Half precision without gradient clipping"),
    CheckCode("NT813", "warmup_too_short", "A long Adam run has almost no warm-up"),
    CheckCode("NT814", "warmup_exceeds_training", "The warm-up is as long as the training, or longer"),
    CheckCode("NT815", "eps_below_dtype", "The optimizer's eps is zero in the precision of the weights"),
    CheckCode("NT816", "beta_rounds_to_one", "Adam's beta2 rounds to one in the precision of its state"),
    CheckCode("NT817", "bf16_weights_frozen", "The updates are too small to change bfloat16 weights"),
    CheckCode(
        "NT818", "temperature_too_low", "The temperature of a loss is so low that its softmax becomes a step function"
    ),
    CheckCode("NT819", "accumulation_mismatch", "Two files give two numbers for gradient accumulation"),
    CheckCode("NT820", "batch_size_mismatch", "The batch size is not what its parts multiply to"),
    CheckCode("NT821", "nan_filter_hides", "The Trainer replaces NaN losses in its log by the average of the others"),
    CheckCode("NT822", "checkpoints_too_rare", "A long run saves no checkpoint, or only one at its end"),
    CheckCode("NT823", "keep_last_too_small", "Only the newest checkpoint is kept"),
    CheckCode(
        "NT824", "resume_overrides_lr", "Resuming restores the old learning rate, whatever the configuration says now"
    ),
    CheckCode("NT851", "isnan_misses_inf", "A loop skips bad steps by isnan, which lets Inf through"),
    CheckCode("NT852", "nan_to_num_on_loss", "nan_to_num on a loss or a gradient hides the NaN and keeps its damage"),
    CheckCode(
        "NT853",
        "zero_gradients_then_step",
        "Gradients are zeroed when they are NaN, and the optimizer still makes the step",
    ),
    CheckCode(
        "NT854", "zero_loss_and_continue", "A loss that is not finite is replaced by zero, and training continues"
    ),
    CheckCode(
        "NT855", "clip_before_unscale", "Gradients are clipped while they are still multiplied by the loss scale"
    ),
    CheckCode("NT856", "clip_after_step", "Gradients are clipped after the optimizer has used them"),
    CheckCode("NT857", "scaler_made_in_loop", "A new GradScaler is made again and again"),
    CheckCode("NT858", "log_of_softmax", "The logarithm of a softmax"),
    CheckCode("NT859", "log_of_sigmoid", "The logarithm of a sigmoid"),
    CheckCode("NT860", "log_without_floor", "The logarithm of a probability that can be exactly zero"),
    CheckCode("NT861", "sqrt_at_zero", "The square root of a sum of squares, whose derivative is infinite at zero"),
    CheckCode(
        "NT862", "where_guards_domain", "torch.where chooses the good value, but the bad one still gives a NaN gradient"
    ),
    CheckCode("NT863", "std_of_one", "An unbiased standard deviation over a batch or group that may have one element"),
    CheckCode(
        "NT864",
        "softmax_over_masked_row",
        "Softmax over scores whose masked positions are -Inf: a row with nothing left is NaN",
    ),
    CheckCode("NT865", "whole_batch_mask_check", "A test for masked rows that tests the whole batch together"),
    CheckCode(
        "NT866", "einsum_repeated_index", "An index appears twice in one operand of an einsum: it takes the diagonal"
    ),
    CheckCode("NT867", "ddp_bypassed", "The loss is computed by model.module, which bypasses DistributedDataParallel"),
    CheckCode("NT868", "eps_too_small_for_half", "An epsilon that is zero in the precision in which it is used"),
    CheckCode("NT869", "anomaly_mode_left_on", "Anomaly detection is always on"),
    CheckCode("NT870", "loss_clamped", "The loss is clamped from above"),
    CheckCode("NT871", "zero_grad_missing", "Gradients are never cleared"),
    CheckCode("NT872", "zero_grad_before_step", "Gradients are cleared between backward and step"),
    CheckCode("NT873", "half_weights_trained", "The weights themselves are float16, and they are trained"),
    CheckCode("NT874", "check_after_step", "The loss is tested after the optimizer has already stepped"),
    CheckCode("NT875", "double_step", "The optimizer steps twice for one backward pass"),
    CheckCode("NT876", "optimizer_frozen", "Every parameter of the optimizer is frozen"),
    CheckCode("NT877", "optimizer_of_another_model", "The model was made again after the optimizer"),
    CheckCode("NT878", "exp_overflows", "The exponential of scores that nothing keeps in range"),
    CheckCode("NT879", "division_by_running_mean", "A loss divides by a running mean that can be zero"),
    CheckCode("NT880", "normalized_both_sides", "Prediction and target are normalised before a squared error"),
)
CHECKS_BY_SLUG: Final = MappingProxyType({check.slug: check for check in CHECKS})

_DATA_RULES: Final = (
    DataRule(
        "NT151",
        "non_finite",
        "a sample holds NaN or Inf, an empty cell in a column of numbers, or a null",
        "repair or leave out these samples: one of them makes the whole batch NaN",
    ),
    DataRule(
        "NT152",
        "overflows_half",
        "a magnitude is above 65,504, the largest float16; only with --dtype float16",
        "scale the field down, or train in bfloat16: float16 ends at 65,504",
    ),
    DataRule(
        "NT153",
        "outlier",
        "a sample's largest magnitude is above 50 times the median of those of all samples",
        "check these samples: wrong unit, wrong scale or a sentinel value such as 1e30",
    ),
    DataRule(
        "NT154",
        "constant_sample",
        "16 or more equal values in a sample of floats or pixels; not reported if a tenth of the samples are constant",
        "check these samples: an empty image or a silent recording; std is 0",
    ),
    DataRule(
        "NT155",
        "constant_field",
        "a field has one value in all of its 16 or more samples",
        "the field carries no information and its std is 0; drop it or repair the export",
    ),
    DataRule(
        "NT156",
        "duplicate_sample",
        "a sample is a later copy: floats, pixels or token ids with 16 or more values, or a whole row of a CSV file",
        "keep one copy; copies in training and validation make the score look too good",
    ),
    DataRule(
        "NT157",
        "shape_mismatch",
        "rank or sizes of a sample are unlike most, or fields of a file differ in length; never the size of images",
        "these samples cannot be stacked with the others; repair or leave them out",
    ),
    DataRule(
        "NT158",
        "label_out_of_range",
        "a label is outside 0..N-1 and is not -100; only with --classes N",
        "the loss indexes with the label: use 0..N-1, or -100 to ignore",
    ),
    DataRule(
        "NT159",
        "token_out_of_range",
        "a token id is outside 0..N-1; only with --vocab N",
        "the embedding indexes with the id: check tokenizer and vocabulary size",
    ),
    DataRule(
        "NT160",
        "empty_mask",
        "a row of a mask holds no 1",
        "softmax over a row with nothing to attend to is NaN; give the row one valid position",
    ),
    DataRule(
        "NT161",
        "all_labels_ignored",
        "every label of a row is -100",
        "the mean over zero labels is NaN; leave these rows out",
    ),
    DataRule(
        "NT162",
        "ctc_infeasible",
        "a CTC target, plus one for each pair of equal neighbours, is longer than its input",
        "CTC needs an input at least as long as target plus repeated labels; leave out",
    ),
    DataRule(
        "NT163",
        "scale_suspect",
        "images of floats hold whole numbers with a maximum of 128 to 255",
        "pixels are 0..255 in a float field; divide by 255",
    ),
    DataRule(
        "NT164",
        "unreadable_file",
        "a file is cut, empty, damaged, not what its name says, or changed while it was read; a dataset that raises",
        "download or write the file again; where your own dataset raised, repair it or leave these samples out",
    ),
)
DATA_RULES: Final = MappingProxyType({rule.slug: rule for rule in _DATA_RULES})
"""By slug. Some of the slugs are also slugs of causes; the codes are not."""
