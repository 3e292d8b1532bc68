"""What a setting means, by its name and its sections, under the names people use.

`meaning(("trainer", "optimizer", "lr"))` is `"lr"`. A mapping file adds names: `nantrap doctor --names FILE`, a YAML or
JSON file of `name: meaning`, e.g. `step_size: lr`. An installed distribution declares the names of its own settings as
entry points of `nantrap.setting_names`: `step_size = "lr"`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from nantrap.doctor.configuration.setting import Setting, Span

_TABLE: Final[dict[str, str]] = {
    "lr": "lr learning_rate max_lr base_lr peak_lr lr_max initial_lr init_lr base_learning_rate max_learning_rate "
    "learningrate lrate initial_learning_rate peak_learning_rate lr_base",
    "min_lr": "min_lr lr_min eta_min min_learning_rate lr_end end_lr final_lr minimum_lr minimum_learning_rate "
    "end_learning_rate min_learningrate",
    "optimizer": "optimizer optim opt optimizer_name optimizer_type optim_name optim_type opt_name opt_type "
    "optimizer_class optimiser",
    "warmup_steps": "warmup_steps num_warmup_steps warmup_iters warmup_iterations lr_warmup_steps warmup_updates "
    "n_warmup_steps warmup_num_steps warmup_step linear_warmup_steps lr_warmup_iters warmup_iter number_warmup_steps "
    "scheduler_warmup_steps warm_up_steps",
    "warmup_ratio": "warmup_ratio warmup_fraction warmup_proportion warmup_pct pct_start lr_warmup_ratio "
    "lr_warmup_fraction warm_up_ratio",
    "warmup_epochs": "warmup_epochs warmup_epoch num_warmup_epochs lr_warmup_epochs warm_up_epochs",
    "warmup": "warmup warm_up lr_warmup",
    "total_steps": "max_steps total_steps max_iters num_training_steps max_train_steps train_steps training_steps "
    "total_iters num_iterations max_iter total_iterations train_num_steps max_updates max_update n_iters num_iters "
    "max_iterations train_iters total_updates num_train_steps iterations total_training_steps total_num_steps "
    "max_optimizer_steps max_training_steps num_updates total_iter",
    "clip": "max_grad_norm grad_clip clip_grad grad_clip_norm gradient_clip_val gradient_clipping clip_grad_norm "
    "grad_norm_clip clip_norm gradient_clip gradient_clip_norm grad_clip_val clip_gradients clip_gradient "
    "max_gradient_norm grad_max_norm clip_max_norm grad_clipping clipping_norm gradient_clip_threshold "
    "grad_clip_thresh clip_gradient_norm max_norm_grad max_clip_norm grad_norm clip_grad_max_norm clip_norm_value",
    "accumulation": "gradient_accumulation_steps accumulation_steps accumulate_grad_batches "
    "grad_accum_steps grad_accum "
    "accum_iter accum_steps gradient_accumulate_every grad_accumulation_steps accum_freq update_freq "
    "gradient_accumulation iter_size grad_acc_steps accumulate_steps accumulation num_accumulation_steps "
    "grad_accumulation gradient_accumulation_step accum_grad acc_steps accumulate_grad_steps",
    "micro_batch": "per_device_train_batch_size train_micro_batch_size_per_gpu micro_batch_size batch_size_per_gpu "
    "per_gpu_batch_size batch_size_per_device per_gpu_train_batch_size device_batch_size train_batch_size_per_gpu "
    "per_device_batch_size micro_train_batch_size device_train_microbatch_size",
    "global_batch": "global_batch_size total_batch_size effective_batch_size train_global_batch_size "
    "global_train_batch_size",
    "batch_size": "batch_size train_batch_size bs batchsize batch",
    "processes": "num_processes nproc_per_node num_gpus n_gpus devices gpus num_devices world_size n_gpu ngpus "
    "num_gpu nproc",
    "nodes": "num_nodes nnodes n_nodes",
    "gpu_ids": "gpu_ids cuda_visible_devices device_ids gpu_id",
    "distributed_type": "distributed_type strategy distributed_strategy distributed_backend",
    "fp16": "fp16 use_fp16 enable_fp16 train_fp16 half use_half",
    "bf16": "bf16 use_bf16 enable_bf16 train_bf16 bfloat16",
    "full_bf16": "full_bf16 pure_bf16 bf16_full_train",
    "full_fp16": "full_fp16 pure_fp16",
    "amp": "amp use_amp enable_amp native_amp use_mixed_precision enable_mixed_precision "
    "mixed_precision_training automatic_mixed_precision",
    "precision": "mixed_precision precision dtype amp_dtype compute_dtype train_dtype training_dtype autocast_dtype "
    "mixed_precision_dtype precision_type amp_precision autocast_precision train_precision half_precision_dtype",
    "weight_dtype": "torch_dtype weights_dtype weight_dtype model_dtype params_dtype",
    "scaler": "grad_scaler scaler use_grad_scaler use_scaler gradscaler loss_scaling loss_scaler use_gradscaler",
    "loss_scale": "loss_scale static_loss_scale fixed_loss_scale",
    "eps": "adam_eps adam_epsilon optimizer_eps opt_eps optim_eps adamw_eps",
    "betas": "betas adam_betas opt_betas optimizer_betas adamw_betas",
    "beta2": "beta2 adam_beta2 adam_b2 b2 beta_2 adamw_beta2",
    "nan_filter": "logging_nan_inf_filter",
    "save_steps": "save_steps save_interval checkpointing_steps save_every save_every_n_steps checkpoint_interval "
    "ckpt_interval checkpoint_every every_n_train_steps save_every_steps checkpoint_steps checkpoint_every_n_steps "
    "ckpt_every save_iters save_iter save_freq save_step_interval checkpoint_frequency ckpt_steps "
    "save_checkpoint_interval save_interval_updates",
    "save_strategy": "save_strategy",
    "save_switch": "enable_checkpointing save_checkpoint save_checkpoints save_ckpt checkpointing do_save",
    "keep": "save_total_limit keep_last max_to_keep keep_last_n keep_checkpoint_max max_keep_ckpts "
    "checkpoints_total_limit keep_last_n_checkpoints keep_n_checkpoints total_limit num_checkpoints_to_keep "
    "max_checkpoints keep_last_k keep_checkpoints keep_last_checkpoints max_keep keep_n_last "
    "num_keep_checkpoints n_checkpoints_to_keep max_checkpoints_to_keep keep_last_ckpts",
    "keep_best": "load_best_model_at_end save_best keep_best save_top_k save_best_only keep_best_checkpoints "
    "keep_best_n track_best keep_best_n_models keep_best_k save_best_model best_metric monitor "
    "metric_for_best_model save_best_checkpoint",
    "resume": "resume resume_from resume_from_checkpoint resume_path resume_ckpt resume_checkpoint resume_milestone "
    "ckpt_path restore_path resume_from_path resume_training resume_file resume_dir",
    "temperature": "temperature temp student_temp teacher_temp student_temperature teacher_temperature "
    "softmax_temp softmax_temperature contrastive_temperature loss_temperature nce_temperature infonce_temperature "
    "nce_t warmup_teacher_temp distillation_temperature kd_temperature temperature_student "
    "temperature_teacher temp_student "
    "temp_teacher clip_temperature contrast_temperature info_nce_temperature logit_temperature simclr_temperature "
    "moco_t temperature_loss contrastive_temp nce_temp moco_temperature",
    "deepspeed": "deepspeed deepspeed_config deepspeed_config_file ds_config deepspeed_path",
    "anomaly": "detect_anomaly",
    "epochs": "epochs num_epochs num_train_epochs max_epochs n_epochs total_epochs train_epochs nepochs",
    "beta": "beta beta_pmi pmi_beta loss_beta",
    "streams": "num_streams n_streams",
}

_MEANING: Final = {name: key for key, names in _TABLE.items() for name in names.split()}
MEANINGS: Final = frozenset(_TABLE)

_OPTIMIZER_SECTIONS: Final = frozenset([
    "optimizer", "optim", "opt", "optimizer_cfg", "optimizer_config", "optimizer_params", "optimizers", "optimiser",
    "optim_wrapper", "optimizer_args", "optim_args", "optimizer_kwargs", "adam", "adamw",
])  # fmt: skip
_CLIP_SECTIONS: Final = frozenset(
    ["clip_grad", "grad_clip", "clip_gradients", "gradient_clipping", "gradient_clip", "grad_norm_clip", "clipping"]
)
_KIND_LEAVES: Final = frozenset(
    ["type", "name", "_target_", "class_path", "class", "cls", "_component_", "target", "kind", "class_name"]
)
_INNER_SECTIONS: Final = frozenset(
    ["params", "args", "init_args", "kwargs", "options", "arguments", "parameters", "hparams"]
)
_SWITCHES: Final = frozenset({"enabled", "enable"})
_IN_SECTION: Final[tuple[tuple[frozenset[str], frozenset[str], str], ...]] = (
    (_OPTIMIZER_SECTIONS, _KIND_LEAVES, "optimizer"),
    (_OPTIMIZER_SECTIONS, frozenset({"eps", "epsilon"}), "eps"),
    (_CLIP_SECTIONS, frozenset({"max_norm", "norm", "value", "threshold", "max_grad_norm"}), "clip"),
    (frozenset({"fp16"}), _SWITCHES, "fp16"),
    (frozenset({"bf16", "bfloat16"}), _SWITCHES, "bf16"),
    (frozenset({"amp"}), _SWITCHES, "amp"),
    (frozenset({"amp", "mixed_precision", "autocast"}), frozenset({"dtype"}), "precision"),
    (frozenset({"resume"}), frozenset({"path", "checkpoint", "from"}), "resume"),
    (frozenset({"temperature", "temperatures", "temp"}), frozenset({"student", "teacher"}), "temperature"),
)
"""Names whose meaning depends on the section: the sections, the names, the meaning."""
# What a file sets for evaluation, sampling or export does not matter for training.
_ELSEWHERE: Final = frozenset([
    "eval", "evaluation", "inference", "infer", "test", "val", "valid", "validation", "generation", "generate",
    "sampling", "sampler", "rollout", "export", "predict", "prediction", "serving", "vllm", "decode", "decoding",
    "generation_config", "gen_config", "quantization", "bnb", "tokenizer", "model_validation", "valid_dataloader",
    "val_dataloader", "test_dataloader", "eval_dataloader",
])  # fmt: skip
_PREFIXES: Final = (
    "train_", "training_", "trainer_", "optimizer_", "optim_", "opt_", "adam_", "adamw_", "hp_", "default_", "cfg_",
    "ds_",
)  # fmt: skip
_MODEL_SECTIONS: Final = frozenset(
    ["model", "network", "net", "architecture", "arch", "unet", "vae", "encoder", "decoder", "diffusion"]
)

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD: Final = re.compile(r"[^a-z0-9_]+")


def plain(name: str) -> str:
    """`learningRate`, `learning-rate` and `LEARNING_RATE` as `learning_rate`."""
    spaced = _CAMEL.sub("_", name) if not name.isupper() else name
    return _NOT_WORD.sub("_", spaced.lower().strip("-")) if not spaced.isidentifier() else spaced.lower()


@functools.cache
def declared_names() -> dict[str, str]:
    """The names of settings that installed distributions declare, with their meanings. Nothing of them is imported."""
    found = entry_points(group="nantrap.setting_names")
    return {plain(each.name): each.value for each in found if each.value in MEANINGS}


def named_setting(
    path: tuple[str, ...],
    value: Any,
    *,
    file: str,
    line: int,
    span: Span | None = None,
    extra: Mapping[str, str] | None = None,
) -> Setting:
    """A setting with the meaning of its name.

    Args:
        path: the names from the top of the file, as written.
        value: what the file has.
        file: where it is.
        line: from 1.
        span: where the value can be replaced.
        extra: more names, from the user's mapping file.
    """
    names = tuple(plain(name) for name in path)
    return Setting(path, names, meaning(names, extra), value, file, line, span)


def meaning(names: tuple[str, ...], extra: Mapping[str, str] | None = None) -> str | None:
    """What a setting means, from its names in plain form; None if the doctor does not use it.

    Args:
        names: the sections from the top and the setting's own name, each in plain form.
        extra: more names, from the user's mapping file.
    """
    leaf, parents = names[-1], names[:-1]
    if extra:
        for form in (".".join(names), leaf):
            if form in extra:
                return extra[form]
    if any(parent in _ELSEWHERE for parent in parents):
        return None
    section = next((parent for parent in reversed(parents) if parent not in _INNER_SECTIONS), "")
    special = next((key for sections, leaves, key in _IN_SECTION if section in sections and leaf in leaves), None)
    if special is not None:
        return special
    key = _MEANING.get(leaf) or _by_prefix(leaf)
    if key is None:
        return None
    return None if _misleading(key, leaf, section, parents) else key


def _by_prefix(leaf: str) -> str | None:
    for prefix in _PREFIXES:
        if leaf.startswith(prefix):
            return _MEANING.get(leaf.removeprefix(prefix))
    return None


def _misleading(key: str, leaf: str, section: str, parents: tuple[str, ...]) -> bool:
    """Whether the section gives a known name another meaning."""
    if key == "loss_scale":
        return any(parent in ("loss", "losses", "criterion", "loss_weights", "model") for parent in parents)
    if key in ("total_steps", "precision", "resume", "batch_size") and section in _MODEL_SECTIONS:
        return True
    if key == "precision" and "trainer" not in parents and not _MODEL_SECTIONS.isdisjoint(parents):
        return True
    if key == "precision" and leaf == "dtype" and section in ("data", "dataset", "datasets", "dataloader"):
        return True
    if key == "clip" and leaf == "grad_norm":
        return "clip" not in section
    if key == "beta":
        return section in _MODEL_SECTIONS | _OPTIMIZER_SECTIONS | {"scheduler", "smooth_l1"}
    if (
        key in ("beta2",)
        and leaf in ("b2", "beta2")
        and section in _MODEL_SECTIONS | {"loss", "diffusion", "scheduler"}
    ):
        return True
    return key == "temperature" and any("gumbel" in parent for parent in parents)
