"""Which precision a value names, and a source asks for: of the computation, and of the weights themselves."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from nantrap.doctor.configuration.setting import UNKNOWN, Setting, SettingSource, switch

_BFLOAT16: Final = frozenset({"bf16", "bfloat16", "amp_bf16", "amp_bfloat16", "mixed_bf16", "mixed_bfloat16"})
_FLOAT16: Final = frozenset({"16", "fp16", "float16", "half", "f16", "amp_fp16", "mixed_fp16", "mixed_float16"})
_FLOAT32: Final = frozenset({"32", "fp32", "float32", "float", "full", "single", "f32"})


class Precision(NamedTuple):
    """`dtype` is float16, bfloat16 or float32; `weights` whether the weights themselves have it."""

    dtype: str
    weights: bool = False


class Asked(NamedTuple):
    """What is asked for and where. `dtype` is float16, bfloat16, float32, `no`, or `amp` (a switch without a dtype)."""

    dtype: str
    setting: Setting


def precision(value: Any) -> Precision | None:
    """The dtype that a value names: `bf16`, `torch.float16`, `16-mixed`, 16, `bf16-true`, ... or None."""
    if isinstance(value, bool) or value is None or value is UNKNOWN:
        return None
    word = str(int(value)) if isinstance(value, float) and value == int(value) else str(value)
    word = word.strip().strip("\"'").lower().removeprefix("torch.").replace("-", "_")
    weights = False
    for ending in ("_true", "_mixed"):
        if word.endswith(ending):
            weights = ending == "_true"
            word = word.removesuffix(ending)
    for beginning in ("pure_", "full_"):
        if word.startswith(beginning):
            weights = True
            word = word.removeprefix(beginning)
    for dtype, names in (("bfloat16", _BFLOAT16), ("float16", _FLOAT16), ("float32", _FLOAT32)):
        if word in names:
            return Precision(dtype, weights and dtype != "float32")
    return None


def says_no(value: Any) -> bool:
    """Whether a precision setting says that there is no mixed precision: `no`, which YAML reads as False."""
    if value is False:
        return True
    return isinstance(value, str) and value.strip().lower() in ("no", "none", "off", "false")


def half_flags(source: SettingSource) -> tuple[list[Setting], list[Setting]]:
    """The switches `fp16` and `bf16` that are on."""
    return (
        [each for each in source.all("fp16") if switch(each.value)],
        [each for each in source.all("bf16") if switch(each.value)],
    )


def computation(source: SettingSource) -> Asked | None:
    """The precision of the computation, or None if the source does not show it."""
    fp16, bf16 = half_flags(source)
    if fp16 and not bf16:
        return Asked("float16", fp16[0])
    if bf16 and not fp16:
        return Asked("bfloat16", bf16[0])
    named = [(found, each) for each in source.all("precision") if (found := _named(each)) is not None]
    if named:
        return Asked(named[0][0].dtype, named[0][1])
    for each in (*source.all("amp"), *(each for each in source.all("precision") if each.value is True)):
        if switch(each.value) or each.value == "amp":
            return Asked("amp", each)
    if fp16 and bf16:
        return None
    for each in source.all("precision"):
        if each.names[-1] == "mixed_precision" and each.known and says_no(each.value):
            return Asked("no", each)
    return None


def weights(source: SettingSource) -> Asked | None:
    """The half precision of the weights themselves (`bf16-true`, `full_bf16`, `torch_dtype`), or None."""
    for each in source.all("precision"):
        found = precision(each.value)
        if found is not None and found.weights:
            return Asked(found.dtype, each)
    for key, dtype in (("full_bf16", "bfloat16"), ("full_fp16", "float16")):
        for each in source.all(key):
            if switch(each.value):
                return Asked(dtype, each)
    for each in source.all("weight_dtype"):
        found = precision(each.value)
        if found is not None and found.dtype != "float32":
            return Asked(found.dtype, each)
    if any("torchtune." in str(each.value) for each in source.settings):  # its `dtype` is that of the weights
        for each in source.all("precision"):
            found = precision(each.value)
            if each.names[-1] == "dtype" and found is not None and found.dtype != "float32":
                return Asked(found.dtype, each)
    return None


def is_half(source: SettingSource) -> bool:
    """Whether the source trains in half precision of any kind."""
    asked = computation(source)
    return (asked is not None and asked.dtype in ("float16", "bfloat16", "amp")) or weights(source) is not None


def has_adapters(source: SettingSource) -> bool:
    """Whether only low-rank adapters are trained: LoRA, PEFT, or quantised weights."""
    for each in source.settings:
        text = "_".join(each.names)
        if any(word in text for word in ("lora", "peft", "load_in_4bit", "load_in_8bit", "adapter")):
            value = each.value
            if value is UNKNOWN or switch(value) is False or value in (None, "", 0, "none", "None", []):
                continue
            return True
        if isinstance(each.value, str) and each.names[-1] not in ("output_dir", "run_name", "description"):
            low = each.value.lower()
            if any(word in low for word in ("lora", "peft")):
                return True
    return False


def keeps_float32(source: SettingSource) -> bool:
    """Whether something keeps an exact copy or rounds at random, so that small updates are not lost."""
    for each in source.settings:
        text = "_".join(each.names)
        named = any(
            word in text for word in ("stochastic_round", "kahan", "master_weight", "fp32_master", "master_param")
        )
        if named and switch(each.value) is not False:
            return True
        if isinstance(each.value, str) and any(
            word in each.value.lower() for word in ("stochastic", "kahan", "anyprecision")
        ):
            return True
    return False


def _named(setting: Setting) -> Precision | None:
    found = precision(setting.value)
    if found is not None and found.dtype == "float32" and setting.names[-1] not in ("precision", "mixed_precision"):
        return None
    return found
