"""What nantrap writes of a command line and of source lines, without the secrets that may be in them.

A command line is kept by an allow-list: options whose names are words of training or stand in the script's source,
numbers after options that name a quantity, values that name something known (a dtype, an optimizer), and paths.
Everything else is `[redacted]`, whatever the option is called, because a list of the forms that a secret takes is never
complete. In text that cannot be judged word by word (a line of source, the message of an exception)
what looks like a secret is replaced by asterisks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Sequence
from typing import Final

REDACTED: Final = "[redacted]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = frozenset((
    "password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "pin", "secret", "secrets", "token", "apikey",
    "credential", "credentials", "cred", "creds", "auth", "authorization", "bearer", "cookie", "key", "dsn", "webhook",
    "signature", "sig", "login", "user", "username", "email", "otp", "totp", "mfa", "license", "licence",
))  # fmt: skip
_SECRET_LETTERS = ("-p", "-P", "-u", "-U", "-k", "-H", "-t")
_NOT_SECRET = re.compile(
    r"(pad|bos|eos|unk|mask|cls|sep|image|query|value|sort|group|data|state|label|primary)_(token|key)"
)
_MEASURES = _words("dim dims heads size length len count limit ratio rate dropout layers weight budget")
"""What a name ends with that counts something: `--token-dim`, `--num_key_value_heads`."""

_NUMBER = re.compile(
    r"[-+]?(\d{1,12}(_\d{3})*(\.\d{0,12})?|\.\d{1,12})(e[-+]?\d{1,3})?(%|[kmgbtx]i?b?|ms|[smhd]|ep|ba|tok)?", re.I
)
_SMALL_OR_FRACTION = re.compile(r"[-+]?(\d{1,2}|\d{0,6}\.\d{1,12}|\d{1,3}\.|\d{0,3}(\.\d{0,12})?e[-+]?\d{1,3})%?", re.I)
"""A number that no pin and no telephone number looks like: it is kept without a name."""
_COUNTING = frozenset("bcdeglnw")
"""Options of one letter that are followed by a count: batch, epochs, layers, number, workers."""
_SHORT_OPTION = re.compile(r"-([A-Za-z]|v{2,3}|[ABC-OQ-Zabdefgijlmnoqrvwxz]\d{1,2})")
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
_OPTION_WORDS = _words("""
    a accelerator accumulate accumulation act activation actor add addr address agent algo algorithm alpha amount and
    anchor arch architecture args attention augment average backbone backend backoff backward bags balance base batches
    batchsize bench benchmark beta betas bias bits block blocks bn bool bs bucket buckets buffer build by cap capacity
    cell channel channels chunk chunks class classes clip clipping cls code codebook coef coeff coefficient collate
    columns command compile compute conf context conv copy count counts crit criterion critic crop cross cut cutoff
    cycle cycles dataloader datasets date ddim debug decay decoder deep delay delta denoise depth det detect determ
    deterministic device devices diagnose diffusion dilation dim dimension dimensions dims discount disc
    distributed div divisor do downsample draft drop dropout dtype dump dynamic early ema embed embedding embeddings
    emb encoder end engine entropy env epsilon eps error eta evals every exp experiment experiments expert experts
    export factor fake fast feature features feed ffn field fields figure fill filter filters final fit flip float fold
    folds for force format forward fps frac fraction frames freeze freq frequency from fused gain gamma gan gen
    gp gpus grad gradient gradients graph greedy grid group groups growth head heads height hidden history hop horizon
    host hours hparams id ids idx ignore image images img imgsz in inf init initial inner input inputs instance int
    interval is iter iters item items job jobs keep kernel kfold kind kl kv label labels lam lambda language languages
    latent layer layers learn learning len length level levels limit line lines list lists load loader local lora loss
    losses lr lrs main make manual map margin masking master max maxlen mel memory merge meta method metric metrics
    micro microbatch milestones min minibatch minimum maximum mixup mode models momentum monitor multi multiplier n name
    names ndim negative negatives nesterov net network new ngpu ngpus ngram nheads nhead nhid nlayers node nodes noise
    norm normalize notes nproc nprocs num number nw objective of offset old on op opt optim optimizer optimizers options
    order other outer outputs over p packed pad padding parallel param params parts patch patches patience penalty per
    percent period pipeline plot point points policy poly pool port positions power pre prec precision predict prefetch
    prefix preset print prior prob prop problem profile progress project prompt prompts prune q quant quantile quantize
    qps r radius random range ranks rate rates ratio read real rebuild recompute reduce reduction reg regularization
    regularizer release repeat repeats repeated report reset resize resolution restore resume reward rewards rollout
    rollouts root rotate rotation rows save sampler samples sampling scale scaler scales schedule scheduler score script
    seed seeds seg segment select self seq seqlen sequence sequences server set setting settings setup shape shard
    shards shift shot shots show shuffle sigma size sizes skips slope smooth smoothing snapshot snr source sparse
    spatial spec spectral speed split splits src stages stage standalone start std stop stopping strategy stream stride
    strides strength student sub subset suffix suite summary support swa sync synthetic system t table tags target
    targets task tasks tau teacher temp temperature temporal term terms tests text tgt threads threshold time timeout
    timesteps title tok tokenizer top topk topp total tpus train trainer trainers training trains transform
    transforms trial trials trials tries tune type u unet units unroll update updates upsample url use v values vae
    valid vary version video view vocab vocabulary wait warm warmup wd weight weights weighted width window windows
    with without word words work workers world write x y z zero zeros
    discriminator embd generator tokens passes api app access wandb kv sdk aws hf hub huggingface openai anthropic slack
    azure google db database uri registry service phrase value
""")
"""Words that names of options are made of."""
_UNSPECIFIC = _words("""
    code id ids name names number num value values text word words set server host url to of in for is from type kind
    notes title tags project job prompt item line point use user do env worker rank local data label
""")
"""Words of them after which a number may be anything."""
_STORAGES = _words("s3 s3a gs gcs r2 oss cos az abfs abfss wasb wasbs hdfs dbfs file hf tcp env sqlite")
_WEB = _words("http https ws wss ftp ftps sftp ssh git postgres postgresql mysql mongodb redis rediss amqp amqps grpc")
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


def redacted(arguments: Sequence[str], names: Container[str] | None = frozenset()) -> list[str]:
    """Command line arguments, each as it is if the allow-list knows its form, else as `[redacted]`.

    The value of an option that is named like a secret is never kept, and the home folder, which names the user, becomes
    `~`.

    Args:
        arguments: the command line.
        names: names of options that are kept besides those that are made of words of training, with `_` for `-`; None:
            the names were judged before.

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
        elif separator and _is_option(name, names):
            shown.append(f"{name}={_value(value, name)}")
        elif argument.startswith("-") and not _NUMBER.fullmatch(argument):
            shown.append(argument if _is_option(argument, names) or argument == "--" else _cut(argument))
        else:
            shown.append(_value(argument, ""))
        is_bare = argument.startswith("-") and not separator and _NUMBER.fullmatch(argument) is None
        before = argument if is_bare or (before and _is_secret(before) and argument.startswith("-")) else ""
    return shown


def option_names(source: str) -> frozenset[str]:
    """Every name in a script's source, which is where the names of its options stand."""
    return frozenset(name.replace("-", "_") for name in re.findall(r"[A-Za-z_][A-Za-z0-9_-]{0,60}", source))


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


def _is_option(text: str, names: Container[str] | None) -> bool:
    """Whether the text is the name of an option or a setting that is kept, and no value that is written against it."""
    if text.startswith("-") and not text.startswith("--"):
        if _SHORT_OPTION.fullmatch(text) is not None:
            return True
        parts = _parts(text[1:])
        holds_value = bool(parts) and f"-{parts[0]}" in _SECRET_LETTERS  # `-pPassword12`
        return len(text) > 2 and not holds_value and all(map(_is_option_word, parts)) and bool(_NAME.fullmatch(text))
    if _NAME.fullmatch(text) is None or _TOKENS.search(text) is not None:
        return False
    if names is None:
        return all(_WORD.fullmatch(part) or part in _HARMLESS for part in _parts(text.lstrip("-+~")))
    return all(
        part.replace("-", "_") in names or all(map(_is_option_word, _parts(part)))
        for part in re.split(r"[./@]", text.lstrip("-+~"))
    )


def _is_option_word(text: str) -> bool:
    words = {text.lower(), word := re.sub(r"\d{1,2}$", "", text.lower())}
    return len(word) <= 1 or any(words & known for known in (_OPTION_WORDS, _SECRET_WORDS, _HARMLESS, _PATH_WORDS))


def _cut(argument: str) -> str:
    """An option that is not kept: its first letter is, as in `-p[redacted]`."""
    return REDACTED if argument.startswith("--") else f"{argument[:2]}{REDACTED}"


def _parts(text: str) -> list[str]:
    spread = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    return [part for part in re.split(r"[-_.:/@\\]", spread) if part]


def _is_secret(name: str) -> bool:
    """Whether an option is named like a secret: `--wandb-api-key`, `db.password`, `-p`."""
    if name in _SECRET_LETTERS:
        return True
    words = [word.lower() for word in _parts(name.lstrip("-+~"))]
    if _NOT_SECRET.fullmatch("_".join(words[-2:])) or (words[-1:] and words[-1] in _MEASURES):
        return False
    return any(word in _SECRET_WORDS for word in words)


def _value(text: str, name: str) -> str:
    """A value as it is, or redacted, by the allow-list and by the name of its option."""
    if name and _is_secret(name):
        return REDACTED if text else text
    words = [word.lower() for word in _parts(name)]
    counts = name[1:] in _COUNTING or any(
        len(word) > 1 and word not in _UNSPECIFIC and (word in _OPTION_WORDS or word in _HARMLESS)
        for word in (re.sub(r"\d{1,2}$", "", word) for word in words)
    )
    return _kept(text, counts=counts, names_path=any(word in _PATH_WORDS for word in words))


def _kept(text: str, *, counts: bool, names_path: bool) -> str:
    """A value as it is if it has a known form; an address and a path without what is secret in them."""
    if not text or text == REDACTED or _is_known(text, counts=counts):
        return text
    url = _URL.fullmatch(text)
    if url is not None:
        return _address(*url.groups())
    inner = re.fullmatch(r"([\[(]?)(.*?)([\])]?)", text, re.S)
    if inner is not None and "," in text:
        parts = [part.strip() for part in inner[2].split(",")]
        return text if len(text) <= 200 and all(_is_known(part, counts=counts) for part in parts) else REDACTED
    if inner is not None and inner[1] and _is_known(inner[2], counts=counts):
        return text
    return without_home(text) if _is_path(text, is_expected=names_path) else REDACTED


def _is_known(text: str, *, counts: bool) -> bool:
    """A number that no secret looks like or that counts something, or a word that is known to be harmless."""
    if counts and (_NUMBER.fullmatch(text) or re.fullmatch(r"\d{1,6}([x:/-]\d{1,6}){1,5}", text)):
        return True
    return (
        text.lower() in _HARMLESS
        or _SMALL_OR_FRACTION.fullmatch(text) is not None
        or _SPECIAL_TOKEN.fullmatch(text) is not None
        or _DEVICE.fullmatch(text) is not None
        or re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}(:\d{1,5})?", text) is not None  # an address
    )


def _is_path(text: str, *, is_expected: bool) -> bool:
    """Whether it is a path, by how it begins or ends or because it is there, and no part of it looks like a token."""
    if len(text) > 400 or any(mark in text for mark in "\n\r\0'\"`$;|&<>?=@ ") or ":" in text[2:]:
        return False
    if _TOKENS.search(text):
        return False
    if os.path.exists(text):
        return True
    parts = _parts(without_home(text).lstrip("~"))
    rooted = _ROOTED.match(text) and (is_expected or len(parts) != 1)
    if not (rooted or _ENDING.search(text) or (is_expected and "/" in text)):
        return False
    return all(_WORD.fullmatch(part) or part.lower() in _HARMLESS or part in ("*", "**") for part in parts)


def _address(scheme: str, host: str, path: str, rest: str) -> str:
    """An address without user, password and query; of the web also without its path, which may be a key."""
    if scheme.lower() not in _STORAGES | _WEB:
        return REDACTED
    credentials, sign, machine = host.rpartition("@")
    plain = all(_WORD.fullmatch(part) for part in _parts(machine)) and not _TOKENS.search(machine)
    shown = f"{scheme}://{f'{REDACTED}@' if sign and credentials else ''}{machine if plain else REDACTED}"
    if path.strip("/") and (
        scheme.lower() in _WEB or set(":@") & set(path) or not all(map(_WORD.fullmatch, _parts(path)))
    ):
        return f"{shown}/{REDACTED}"
    shown += path
    return shown + (f"?{REDACTED}" if rest.strip("?#") and not shown.endswith(REDACTED) else "")
