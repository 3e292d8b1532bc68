"""The faults of radiodiff: which parts belong to each, what was tried, and what nantrap must say."""

from __future__ import annotations

from functools import partial

from nantrap_systems.radiodiff import broken
from nantrap_systems.system import Fault, Remedy, lower_rate_and_clip

_SMALL = {"data.image_size": 32, "data.batch_size": 4}
_HALF = {**_SMALL, "trainer.amp": True}  # half precision is slow on a CPU, so the maps are smaller


caution = partial(lower_rate_and_clip, {"trainer.lr": 5e-4, "trainer.max_grad_norm": 0.1})
CAUTION = caution()
SLOWER = caution(result="Touches nothing of the fault, and learns less.")

LOG_ZERO_TIME = Fault(
    name="log_zero_time",
    title="the time embedding takes the logarithm of a time of 0",
    story=(
        "Times are drawn as whole steps, 0 to 199 of 200, and the embedding takes log(t)/4. One map in 200 gets a time "
        "of exactly 0: log 0 is -Inf, its sine NaN, and through the scale and shift of every block the whole batch is "
        "lost."
    ),
    damage="NaN loss at the first time of 0, NaN weights and BatchNorm statistics from then on.",
    answer="Skips the batch, names the logarithm and its zero, proves it with a safe logarithm.",
    parts={"times": broken.whole_steps, "log_time": broken.plain_log_time},
    remedies=(
        Remedy(
            name="weights at 100",
            story="The loss weights clamped at 100, against exploding weights.",
            result="They lie in [2, 5.44] and [1, 2.72]: nothing changes.",
            parts={"weights": broken.clamped_weights},
        ),
        Remedy(
            name="nan_to_num(pred)",
            story="NaN in the prediction becomes 0.",
            result=(
                "In the backward pass, 0 is multiplied by the NaN inside: NaN weights, under a loss that stays "
                "finite to "
                "the end."
            ),
            parts={"terms": broken.filled_prediction},
        ),
        Remedy(
            name="clamp(pred, 1e6)",
            story="The prediction clamped to ±1e6, called gradient clipping.",
            result="NaN passes a clamp.",
            parts={"terms": broken.clamped_prediction},
        ),
        Remedy(
            name="zero loss",
            story="A batch with a bad loss gets a loss of 0 instead.",
            result="The weights stay finite; BatchNorm has swallowed the NaN, and every evaluation is NaN.",
            parts={"terms": broken.zero_loss},
        ),
        CAUTION,
    ),
    cause="log_of_zero",
    module="unet.time",
    op="aten.log",
)

LOG_PLUS_EPS = Remedy(
    name="log(t + 1e-8)",
    story="An epsilon inside the logarithm.",
    result="Holds in float32: log(1e-8)/4 is -4.6.",
    holds=True,
    parts={"log_time": broken.log_time_plus_eps},
)
"""Not shown, but tested: the one form in which a remedy holds."""

FAULTS = (
    LOG_ZERO_TIME,
    Fault(
        name="amp_without_scaler",
        title="`amp: true` with `fp16: false` is float16 autocast without loss scaling",
        story=(
            '`accelerate config` was set to bf16. The trainer gives its Accelerator `mixed_precision="no"`, since '
            "`fp16` is false, which overrides the file, and switches autocast on without a dtype, which is float16. "
            "Then one batch comes from 16-bit PNGs: 65,535 fits into bfloat16, in float16 it is Inf. There is no "
            "GradScaler, so nothing skips that step."
        ),
        damage="NaN loss at that batch, NaN weights from then on.",
        answer="Skips the step, names the convolution whose input does not fit, proves it in float32.",
        extra="accelerate",
        parts={"precision": broken.precision_of_trainer, "prepare": broken.sixteen_bits},
        settings=_HALF,
        remedies=(
            Remedy(
                name="fp16: true",
                story="The other switch, which adds a GradScaler.",
                result="It skips that step; the BatchNorm behind it keeps the NaN, and every evaluation is NaN.",
                settings={"trainer.fp16": True},
            ),
            CAUTION,
        ),
        cause="fp16_forward_overflow",
    ),
    Fault(
        name="unscaled_attention",
        title="attention without 1/√d in float16",
        story=(
            "Queries and keys have grown until their product passes 65,504, which it does from entries of 64 in 16 "
            "dimensions. Softmax of Inf is NaN. The GradScaler treats every step as an overflow, skips it "
            "and halves its scale."
        ),
        damage="No step is ever taken again; BatchNorm is NaN, the loss scale falls towards 0.",
        answer="Stops after its budget of skips and rollbacks, the product and its magnitude named, proven in float32.",
        parts={"attend": broken.unscaled_attention},
        settings={**_HALF, "trainer.fp16": True, "unet.query_key_gain": 160.0},
        remedies=(
            Remedy(
                name="nan_to_num(scores)",
                story="NaN scores become 0 and Inf ones 65,504 before the softmax.",
                result="Holds: scores that overflowed count alike and send no gradient back; there is no message.",
                holds=True,
                parts={"attend": broken.filled_attention},
            ),
            CAUTION,
        ),
        cause="fp16_forward_overflow",
        module="unet.relations.0.attention",
        op="aten.bmm",
    ),
    Fault(
        name="empty_first_batch",
        title="the scale of the latents is 1/std of a first batch without any spread",
        story=(
            "The scale factor is decided by the first batch, once. Here that batch holds empty maps, whose latents are "
            "0: the std is 0, the scale Inf, and it stays Inf for every batch that follows."
        ),
        damage="NaN from the first step on.",
        answer=(
            "Skips the first step, names the division, and puts the buffer back as it was: so the second batch decides "
            "the scale."
        ),
        parts={
            "model": broken.EmptyMapsAreZero,
            "scale": broken.one_over_any_std,
            "prepare": broken.empty_first_batch,
        },
        remedies=(
            Remedy(
                name="nan_to_num(input)",
                story="NaN in the latents becomes 0, Inf the largest number.",
                result="The first loss is finite, every later one is not: the scale stays Inf.",
                parts={"model": broken.FilledLatents},
            ),
            Remedy(
                name="skip bad steps",
                story="No step if a gradient is not finite.",
                result="Every step is skipped, because the scale stays Inf.",
                parts={"update": broken.skip_bad_step},
            ),
            CAUTION,
        ),
        cause="division_by_zero",
        op="aten.reciprocal",
    ),
    Fault(
        name="poisoned_batchnorm",
        title="one NaN batch stays in BatchNorm's running statistics though its step was skipped",
        story=(
            "One condition of one batch has a pixel missing. The loop sees the bad gradient and skips the step. But "
            "the forward pass has moved BatchNorm's running mean, and 0.9 · NaN is NaN."
        ),
        damage="Weights finite, training loss fine, every evaluation NaN from there to the end.",
        answer="Skips the batch, names the tensor and the sample, and puts the running statistics back.",
        parts={"prepare": broken.nan_condition, "update": broken.skip_bad_step},
        remedies=(
            Remedy(
                name="zero loss",
                story="A batch with a bad loss gets a loss of 0 instead.",
                result="The statistics were moved before the loss was tested.",
                parts={"terms": broken.zero_loss},
            ),
            CAUTION,
        ),
        cause="bad_input_data",
        module="data",
    ),
    Fault(
        name="nan_pixel",
        title="a map with a NaN pixel",
        story=(
            "A map in 60 has one pixel missing, read as NaN. The encoder's GroupNorm spreads it over the whole map, "
            "and the loss is a mean over the batch."
        ),
        damage="NaN loss at the first such map, NaN weights from then on.",
        answer="Skips the batch, names the tensor and the sample, proves it by leaving the sample out.",
        parts={"prepare": broken.nan_pixel},
        remedies=(
            Remedy(
                name="nan_to_num(loss)",
                story="A loss of NaN becomes 0.",
                result="The loss reads 0.0 and looks perfect; its gradient is NaN, and so are the weights.",
                parts={"terms": broken.filled_loss},
            ),
            Remedy(
                name="nan_to_num(pred)",
                story="NaN in the prediction becomes 0.",
                result="The target is NaN as well.",
                parts={"terms": broken.filled_prediction},
            ),
            Remedy(
                name="nan_to_num(image)",
                story="The missing pixel becomes a middling gain, before the encoder.",
                result="Holds, at the price of a wrong pixel without any message: no gradient passes here.",
                holds=True,
                parts={"prepare": broken.filled_pixel},
            ),
            CAUTION,
        ),
        cause="bad_input_data",
        module="data",
    ),
    Fault(
        name="png_scale",
        title="PNGs that were never divided by 255",
        story=(
            "Every fourth batch comes from a folder whose PNGs are read as 0..255. Everything stays finite: norms take "
            "the scale out again, and a quarter of all steps teach something else."
        ),
        damage="Finite in every step, and worse maps.",
        answer=(
            "Nothing is non-finite, so the guard applies every step. `nantrap data` sees it before training: the "
            "range of these files is not that of the others."
        ),
        parts={"prepare": broken.never_divided},
        remedies=(SLOWER,),
        reported_by="data check",
        code="NT163",
    ),
    Fault(
        name="min_lr_factor",
        title="`min_lr` used as a factor of the learning rate",
        story=(
            "The schedule is max((1 - step/total)^0.96, min_lr), and a LambdaLR multiplies the learning rate by it: "
            "the floor is not 5e-4 but 5e-3 · 5e-4. With a learning rate of 5e-5 and a min_lr of 5e-6 it is 2.5e-10. "
            "Nothing moves there."
        ),
        damage="Finite in every step; the second half of the run is wasted.",
        answer=(
            "There is no incident: a wrong setting is not a fault of a step. `nantrap doctor` sees it in the code "
            "before training."
        ),
        parts={"decay": broken.floor_as_factor},
        settings={"trainer.train_num_steps": 24},
        remedies=(
            Remedy(
                name="min_lr 5e-3",
                story="A floor ten times as high.",
                result="Ten times nothing: 2.5e-5.",
                settings={"trainer.min_lr": 5e-3},
            ),
            SLOWER,
        ),
        reported_by="doctor",
        code="NT808",
    ),
    Fault(
        name="around_ddp",
        title="`model.module.training_step` bypasses DistributedDataParallel",
        story=(
            "The trainer calls a method of the inner module. DistributedDataParallel averages gradients only for what "
            "went through its own forward, so each rank trains its own model, on its half of the data."
        ),
        damage="Finite in every step; the ranks hold different weights, and what is saved saw half of the data.",
        answer="Compares a checksum of the weights between ranks after the first step, and says so.",
        parts={"call": broken.around_the_wrapper},
        settings={**_SMALL, "first_stage.train_num_steps": 60},
        remedies=(SLOWER,),
        cause="rank_divergence",
        processes=2,
    ),
    Fault(
        name="sampler_below_zero",
        title="a sampler with more steps than 1/ε has a negative one",
        story=(
            "The last two steps of the sampler are 1/N - ε and ε. With N = 25 and ε = 0.05 the first of them is "
            "-0.01, and the sampler takes the root of a product with it. The project's ε is 1e-4: there it begins at "
            "10,001 steps."
        ),
        damage="Training is healthy, and every map that is sampled is NaN.",
        answer="No incident: no training step is wrong, and what an evaluation computes is not checked.",
        parts={"steps": broken.time_steps_below_zero},
        settings={"model.eps": 0.05, "model.sampling_timesteps": 25, "model.evaluate_samples": True},
        remedies=(
            Remedy(
                name="N = 20",
                story="As many steps as 1/ε.",
                result="Holds: the step before the last is 0.",
                holds=True,
                settings={"model.sampling_timesteps": 20},
            ),
            SLOWER,
        ),
    ),
)
