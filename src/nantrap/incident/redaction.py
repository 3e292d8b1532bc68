"""What nantrap writes of a command line and of source lines, without the secrets that may be in them.

A command line is kept by an allow-list: numbers, switches, values that name something known (a dtype, an optimizer),
and paths. Everything else is `[redacted]`, whatever the option is called, because a list of the forms that a secret
takes is never complete. In text that cannot be judged word by word (a line of source, the message of an exception)
what looks like a secret is replaced by asterisks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

REDACTED: Final = "[redacted]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = frozenset((
    "password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "pin", "secret", "secrets", "token", "apikey",
    "credential", "credentials", "cred", "creds", "auth", "authorization", "bearer", "cookie", "key", "dsn", "webhook",
    "signature", "sig", "login", "user", "username", "email", "otp", "totp", "mfa", "license", "licence",
))  # fmt: skip
_NUMBERS_PASS = frozenset(("key", "token", "user", "sig", "signature", "auth"))
"""Words that also name counts and places: `--key 5` is no secret, `--pin 1234` is one."""
_NOT_SECRET = re.compile(
    r"(pad|bos|eos|unk|mask|cls|sep|image|query|value|sort|group|data|state|label|primary)_(token|key)"
)

_NUMBER = re.compile(
    r"[-+]?(\d{1,12}(_\d{3})*(\.\d{0,12})?|\.\d{1,12})(e[-+]?\d{1,3})?(%|[kmgbtx]i?b?|ms|[smhd]|ep|ba|tok)?", re.I
)
_SHORT_OPTION = re.compile(r"-[A-Za-z]{1,3}|-[A-Za-z]\d{1,3}")
_NAME = re.compile(r"[-+~]{0,2}[A-Za-z_][A-Za-z0-9_.@/-]{0,80}")
_SPECIAL_TOKEN = re.compile(r"</?[a-z_|]{1,12}>|\[[A-Z]{2,5}\]")
_DEVICE = re.compile(r"(cuda|cpu|mps|xpu|tpu|hpu|npu|gpu)(:\d{1,3})?")
_WORD = re.compile(
    r"[A-Z]?[a-z]{1,16}\d{0,4}|[A-Z]{1,6}\d{0,4}|[vVrRbBxX]?\d{1,8}[a-zA-Z]{0,2}|[A-Z][a-z]{1,9}[A-Z][a-z]{1,9}"
)
"""One word of a file's name: `llama`, `GPT2`, `7b`, `TinyStories`; not `wJalrXUtnFEMI`."""
_PATH_WORDS = _words("""
    dir folder path file out output data dataset model config checkpoint ckpt log logs logdir run runs root cache
""")
_ROOTED = re.compile(r"[A-Za-z]:[\\/]|\.{0,2}/|~(?:/|$)|\.{1,2}$")
_ENDING = re.compile(
    r"\.(py|sh|ya?ml|json[lc]?|toml|ini|cfg|csv|tsv|txt|log|md|pth?|ckpt|bin|safetensors|npz?|h5|hdf5|parquet|arrow|"
    r"pkl|pickle|tar|gz|zst|zip|png|jpe?g|wav|mp[34]|model|gguf|onnx|db|sqlite|out|err|pid|sock)$"
)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,15})://([^/?#]*)([^?#]*)(.*)", re.S)

_HARMLESS = _words("""
    true false yes no on off none null auto default all any never always only train test val valid validate
    validation eval evaluate predict fit run resume finetune pretrain sample generate infer inference export serve
    tune sweep worker master local remote dev debug info warning warn error critical quiet verbose silent dry
    online offline disabled enabled bf16 fp16 fp32 fp64 fp8 tf32 int8 int4 uint8 float16 float32 float64 bfloat16
    half float double 16-mixed bf16-mixed 32-true 16-true bf16-true 64-true mixed amp no_amp o0 o1 o2 high highest
    medium low sgd adam adamw adamax nadam radam rmsprop adagrad adadelta adafactor lion lamb lars muon shampoo
    sophia lbfgs asgd cosine linear constant polynomial exponential step multistep plateau onecycle cyclic
    inverse_sqrt constant_with_warmup warmup warmup_cosine reduce_on_plateau ddp fsdp fsdp2 dp deepspeed
    deepspeed_stage_1 deepspeed_stage_2 deepspeed_stage_3 nccl gloo mpi hccl ccl zero1 zero2 zero3 spawn fork
    forkserver env gpu tpu cpu cuda mps rank world horovod xla single relu gelu silu swish mish tanh sigmoid
    softmax elu selu leaky_relu prelu glu geglu swiglu identity layernorm rmsnorm batchnorm groupnorm instancenorm
    mse mae l1 l2 huber bce ce cross_entropy cross-entropy nll kl kld focal dice hinge ctc triplet contrastive
    smooth_l1 mean sum max min median first last best latest left right same zeros ones normal uniform xavier
    kaiming orthogonal truncated_normal sinusoidal rotary rope learned absolute relative alibi epoch epochs steps
    batch iteration iterations tokens samples seconds minutes hours mnist fashion_mnist cifar10 cifar100 imagenet
    coco ade20k wikitext wikitext-2 wikitext-103 c4 openwebtext pile shakespeare tinystories squad glue mnli sst2
    librispeech gpt gpt2 gpt2-medium gpt2-large gpt2-xl gptj gpt-neo llama llama2 llama3 mistral mixtral qwen qwen2
    gemma phi bert roberta distilbert albert electra deberta t5 bart vit vit_b_16 deit swin resnet resnet18
    resnet34 resnet50 resnet101 resnet152 vgg vgg16 efficientnet mobilenet convnext unet dit mlp cnn rnn lstm gru
    transformer mamba clip whisper wav2vec2 bert-base-uncased bert-base-cased bert-large-uncased roberta-base
    roberta-large t5-small t5-base tensorboard wandb mlflow comet csv json yaml parquet jsonl text png pdf html
    stdout stderr console min-max nearest bilinear bicubic area trilinear eager inductor aot_eager reduce-overhead
    max-autotune flash sdpa xformers skip rollback stop raise light full safe fast slow
""")
"""Values that are no secret because everyone uses them."""

_TOKENS = re.compile(
    r"(hf_|gh[pousr]_|github_pat_|glpat-|sk-|pk_|rk_|sk_|xox[abeoprs]-|xapp-|AKIA|ASIA|AROA|AIza|ya29\.|npm_|pypi-|dop_v1_|"
    r"shpat_|SG\.|r8_|nvapi-|lin_api_|key-)[\w.-]{12,}"
    r"|eyJ[\w-]{10,}\.[\w-]+\.?[\w-]*"
    r"|(?<![\w/])(?=[\w/+]*[A-Z])(?=[\w/+]*[a-z])(?=[\w/+]*\d)[A-Za-z0-9/+]{40}(?![\w/+])"
    r"|\b[0-9a-f]{32}(?:[0-9a-f]{8}|[0-9a-f]{32})?\b"
    r"|(?<=://)[^/@\s'\"]+(?=@)"
    r"|(?i:(?<=bearer )|(?<=basic )|(?<=token ))[\w.+/=~-]{6,}"
    r"|(?<=[?&])(?:[\w-]*(?:sig|signature|token|key|secret|password|credential|auth)[\w-]*=)[^&\s'\"]+",
)
_NAMED_LITERAL = re.compile(
    r"""(?P<name>[\w-]*?(?:password|passwd|passphrase|pwd|secret|token|api_?key|access_?key|credentials?|auth|dsn|webhook)[\w-]*)
        (?P<between>["']?\s*\]?\s*(?::\s*\w+\s*=|=|:|,|\()\s*[rbfu]{0,2})(?P<quote>["'])(?P<value>(?:\\.|(?!(?P=quote)).)+)""",
    re.VERBOSE | re.IGNORECASE,
)


def redacted(arguments: Sequence[str]) -> list[str]:
    """Command line arguments, each as it is if the allow-list knows its form, else as `[redacted]`.

    The names of options are kept. The value of an option that is named like a secret is never kept, and the home
    folder, which names the user, becomes `~`.

    Examples:
        >>> redacted(["train.py", "--lr=1e-4", "--hf_token", "abc", "-p", "hunter2", "model.width=64"])
        ['train.py', '--lr=1e-4', '--hf_token', '[redacted]', '-p', '[redacted]', 'model.width=64']
    """
    shown: list[str] = []
    before = ""
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if before and (not argument.startswith("-") or _NUMBER.fullmatch(argument)):
            shown.append(_value(argument, before))
        elif separator and _NAME.fullmatch(name) and _is_option(name):
            shown.append(f"{name}={_value(value, name)}")
        elif argument.startswith("-") and not _NUMBER.fullmatch(argument):
            shown.append(argument if _is_option(argument) or argument == "--" else _cut(argument))
        else:
            shown.append(_value(argument, ""))
        is_bare = argument.startswith("-") and not separator and _NUMBER.fullmatch(argument) is None
        before = argument if is_bare or (before and _is_secret(before) and argument.startswith("-")) else ""
    return shown


def without_home(text: str) -> str:
    """The text with `~` in place of the user's home folder."""
    home = os.path.expanduser("~")
    return re.sub(rf"{re.escape(home)}(?=[/\\]|$)", "~", text) if len(home) > 1 else text


def without_secrets(text: str) -> str:
    """A line of source or a message, with asterisks for what looks like a secret. The length stays.

    Tokens of well-known services, credentials in addresses, and literals that are assigned or passed under a name like
    `api_key` are replaced. Everything else is shown: this is a list of forms, and no promise.
    """
    text = _TOKENS.sub(lambda match: "*" * len(match[0]), text)
    return _NAMED_LITERAL.sub(lambda m: f"{m['name']}{m['between']}{m['quote']}{'*' * len(m['value'])}", text)


def _is_option(text: str) -> bool:
    """Whether the text is the name of an option or a setting, and no value that is written against it."""
    if text.startswith("-") and not text.startswith("--"):
        return _SHORT_OPTION.fullmatch(text) is not None or _is_known(text[1:])
    return (
        _NAME.fullmatch(text) is not None
        and all(_WORD.fullmatch(part) or part in _HARMLESS for part in _parts(text.lstrip("-+~")))
        and _TOKENS.search(text) is None
    )


def _cut(argument: str) -> str:
    """An option that is not kept: its first letter is, as in `-p[redacted]`."""
    return REDACTED if argument.startswith("--") else f"{argument[:2]}{REDACTED}"


def _parts(text: str) -> list[str]:
    spread = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    return [part for part in re.split(r"[-_.:/@\\]", spread) if part]


def _is_secret(name: str) -> bool:
    """Whether an option is named like a secret: `--wandb-api-key`, `db.password`, `-p`."""
    if name in ("-p", "-P", "-u", "-U", "-k", "-H", "-t"):
        return True
    words = [word.lower() for word in _parts(name.lstrip("-+~"))]
    if _NOT_SECRET.fullmatch("_".join(words[-2:])):
        return False
    return any(word in _SECRET_WORDS for word in words)


def _value(text: str, name: str) -> str:
    """A value as it is, or redacted, by the allow-list and by the name of its option."""
    if name and _is_secret(name):
        words = {word.lower() for word in _parts(name)} & _SECRET_WORDS
        short = name.startswith("-") and not name.startswith("--")
        counts = _NUMBER.fullmatch(text) is not None and len(text) <= 5
        return text if not text or (counts and (short or words <= _NUMBERS_PASS)) else REDACTED
    return _kept(text, names_path=any(word.lower() in _PATH_WORDS for word in _parts(name)))


def _kept(text: str, *, names_path: bool) -> str:
    """A value as it is if it has a known form; an address and a path without what is secret in them."""
    if not text or text == REDACTED or _is_known(text):
        return text
    url = _URL.fullmatch(text)
    if url is not None:
        return _address(*url.groups())
    inner = re.fullmatch(r"([\[(]?)(.*?)([\])]?)", text, re.S)
    if inner is not None and "," in text:
        parts = [part.strip() for part in inner[2].split(",")]
        return text if len(text) <= 200 and all(map(_is_known, parts)) else REDACTED
    if inner is not None and inner[1] and _is_known(inner[2]):
        return text
    return without_home(text) if _is_path(text, is_expected=names_path) else REDACTED


def _is_known(text: str) -> bool:
    """A number, or a word that is known to be harmless."""
    return (
        text.lower() in _HARMLESS
        or _NUMBER.fullmatch(text) is not None
        or _SPECIAL_TOKEN.fullmatch(text) is not None
        or _DEVICE.fullmatch(text) is not None
        or re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}(:\d{1,5})?", text) is not None  # an address
        or re.fullmatch(r"\d{1,6}([x:/-]\d{1,6}){1,5}", text) is not None  # 64x64, a date, a time
    )


def _is_path(text: str, *, is_expected: bool) -> bool:
    """Whether it is a path, by how it begins or ends or because it is there, and no part of it looks like a token."""
    if len(text) > 400 or any(mark in text for mark in "\n\r\0'\"`$;|&<>?=@ ") or ":" in text[2:]:
        return False
    if _TOKENS.search(text):
        return False
    if os.path.exists(text):
        return True
    if not (_ROOTED.match(text) or _ENDING.search(text) or (is_expected and "/" in text)):
        return False
    parts = _parts(without_home(text).lstrip("~"))
    return all(_WORD.fullmatch(part) or part.lower() in _HARMLESS or part in ("*", "**") for part in parts)


def _address(scheme: str, host: str, path: str, rest: str) -> str:
    """An address without user, password, query and whatever part of its path is no plain word."""
    credentials, sign, machine = host.rpartition("@")
    plain = all(_WORD.fullmatch(part) for part in _parts(machine)) and not _TOKENS.search(machine)
    shown = f"{scheme}://{f'{REDACTED}@' if sign and credentials else ''}{machine if plain else REDACTED}"
    if path and (set(":@") & set(path) or not all(_WORD.fullmatch(part) for part in _parts(path))):
        return f"{shown}/{REDACTED}"
    hooks = any(part.lower() in ("services", "webhook", "webhooks", "hooks") for part in _parts(path))
    shown += f"/{REDACTED}" if hooks else path
    return shown + (f"?{REDACTED}" if rest.strip("?#") else "")
