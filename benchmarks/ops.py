"""What a safe operation costs, next to the line that people write: forward and backward, CPU, one thread.

Each round times the naive form, the safe form and the naive form again, next to each other, so that a slow moment of
the machine affects all three alike. It reports medians over rounds: of the naive time, of safe/naive, and of
naive/naive, the control, which says how far from 1 a ratio must be to mean anything. Times are CPU times of the
process, so that neighbours on the machine count less.

    python benchmarks/ops.py [--rounds 41] [--only softmax]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nantrap import ops

LIMIT = 1.5


class Case(NamedTuple):
    name: str
    size: str
    naive_line: str
    naive: Callable[..., Tensor]
    safe: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    judged: bool = True
    """Against a form that protects nothing at all the ratio is shown, and not held to the limit."""


def positive(*shape: int) -> Tensor:
    return (torch.rand(shape) + 0.1).requires_grad_()


def normal(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def padding(batch: int, length: int) -> Tensor:
    """True for the real tokens of rows of different lengths."""
    lengths = torch.randint(length // 4, length + 1, (batch, 1))
    return torch.arange(length) < lengths


def cases() -> Iterator[Case]:
    yield from elementwise()
    yield from reductions()
    yield from networks()
    yield from losses()


def elementwise() -> Iterator[Case]:
    for rows, columns in ((64, 1024), (256, 4096)):  # where Python's share shows, and where memory's does
        x, y, size = positive(rows, columns), positive(rows, columns), f"{rows}×{columns}"
        cosine = ((torch.rand(rows, columns) * 1.98) - 0.99).requires_grad_()
        row = positive(rows, 1)
        yield from with_an_eps(x, y, row, cosine, size)
        for name, line, naive, safe, inputs in (
            ("safe_log", "x.log()", torch.log, ops.safe_log, (x,)),
            ("safe_sqrt", "x.sqrt()", torch.sqrt, ops.safe_sqrt, (x,)),
            ("safe_acos", "x.acos()", torch.acos, ops.safe_acos, (cosine,)),
            ("safe_divide", "a / b", torch.div, ops.safe_divide, (x, y)),
        ):
            yield Case(f"{name} (bare)", size, line, naive, safe, inputs, judged=False)


def with_an_eps(x: Tensor, y: Tensor, row: Tensor, cosine: Tensor, size: str) -> Iterator[Case]:
    """What people write so that it does not fail at zero. It still does, in half precision or in the gradient."""
    eps, edge = 1e-8, 1 - 1e-6
    yield Case("safe_log", size, "(x + 1e-8).log()", lambda x: (x + eps).log(), ops.safe_log, (x,))
    yield Case("safe_sqrt", size, "(x + 1e-8).sqrt()", lambda x: (x + eps).sqrt(), ops.safe_sqrt, (x,))
    yield Case(
        "safe_pow", size, "(x + 1e-8) ** 0.75", lambda x: (x + eps) ** 0.75, lambda x: ops.safe_pow(x, 0.75), (x,)
    )
    yield Case(
        "safe_acos", size, "x.clamp(-e, e).acos()", lambda x: x.clamp(-edge, edge).acos(), ops.safe_acos, (cosine,)
    )
    yield Case(
        "safe_asin", size, "x.clamp(-e, e).asin()", lambda x: x.clamp(-edge, edge).asin(), ops.safe_asin, (cosine,)
    )
    yield Case("safe_divide", size, "a / (b + 1e-8)", lambda a, b: a / (b + eps), ops.safe_divide, (x, y))
    rows = f"{size} / {row.shape[0]}×1"
    yield Case("safe_divide (rows)", rows, "a / (b + 1e-8)", lambda a, b: a / (b + eps), ops.safe_divide, (x, row))
    yield Case("xlogx", size, "x * (x + 1e-8).log()", lambda x: x * (x + eps).log(), ops.xlogx, (x,))


def reductions() -> Iterator[Case]:
    x, size = normal(256, 4096), "256×4096"
    mask, small = padding(256, 4096), padding(64, 128)[:, :, None]
    maps = normal(64, 128, 128)
    yield Case(
        "safe_norm",
        size,
        "x.square().sum(-1).sqrt()",
        lambda x: x.square().sum(-1).sqrt(),
        lambda x: ops.safe_norm(x, -1),
        (x,),
    )
    yield Case(
        "safe_norm (fused)",
        size,
        "torch.linalg.vector_norm(x, dim=-1)",
        lambda x: torch.linalg.vector_norm(x, dim=-1),
        lambda x: ops.safe_norm(x, -1),
        (x,),
    )
    yield Case("safe_var", size, "x.var(-1)", lambda x: x.var(-1), lambda x: ops.safe_var(x, -1), (x,))
    yield Case("safe_std", size, "x.std(-1)", lambda x: x.std(-1), lambda x: ops.safe_std(x, -1), (x,))
    yield Case(
        "masked_mean",
        "64×128×128",
        "(x * m).sum() / m.sum()",
        lambda x: (x * small).sum() / small.expand_as(x).sum(),
        lambda x: ops.masked_mean(x, small),
        (maps,),
    )
    yield Case(
        "masked_mse",
        "64×128×128",
        "((x - y).square() * m).sum() / m.sum()",
        lambda x, y: ((x - y).square() * small).sum() / small.expand_as(x).sum(),
        lambda x, y: ops.masked_mse(x, y, small),
        (maps, torch.randn(64, 128, 128)),
    )
    yield Case(
        "masked_softmax",
        size,
        "x.masked_fill(~m, -inf).softmax(-1)",
        lambda x: x.masked_fill(~mask, -torch.inf).softmax(-1),
        lambda x: ops.masked_softmax(x, mask),
        (x,),
    )
    yield Case(
        "masked_log_softmax",
        size,
        "x.masked_fill(~m, -inf).log_softmax(-1)",
        lambda x: x.masked_fill(~mask, -torch.inf).log_softmax(-1),
        lambda x: ops.masked_log_softmax(x, mask),
        (x,),
    )
    yield Case(
        "temperature_softmax",
        size,
        "(x / 0.1).softmax(-1)",
        lambda x: (x / 0.1).softmax(-1),
        lambda x: ops.temperature_softmax(x, 0.1),
        (x,),
    )
    yield Case(
        "temperature_log_softmax",
        size,
        "(x / 0.1).log_softmax(-1)",
        lambda x: (x / 0.1).log_softmax(-1),
        lambda x: ops.temperature_log_softmax(x, 0.1),
        (x,),
    )
    yield Case(
        "normalize_weights",
        size,
        "w / w.sum(-1, keepdim=True)",
        lambda w: w / w.sum(-1, keepdim=True),
        lambda w: ops.normalize_weights(w),
        (positive(256, 4096),),
    )


def networks() -> Iterator[Case]:
    tokens, weight = normal(8, 256, 512), torch.ones(512).requires_grad_()
    shift, scale = normal(8, 1, 512), normal(8, 1, 512)
    q, k, v = normal(4, 8, 256, 64), normal(4, 8, 256, 64), normal(4, 8, 256, 64)
    mask = padding(4, 256)[:, None, None, :]
    half = torch.randn(8, 256, 512).bfloat16().requires_grad_()

    def plain_rms(x: Tensor, w: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    def plain_sinkhorn(logits: Tensor) -> Tensor:
        matrix = logits.exp()
        for _ in range(20):
            matrix = matrix / matrix.sum(-1, keepdim=True)
            matrix = matrix / matrix.sum(-2, keepdim=True)
        return matrix

    yield Case("rms_norm", "8×256×512", "x * rsqrt(mean(x²) + eps) * w", plain_rms, ops.rms_norm, (tokens, weight))
    yield Case(
        "rms_norm (fused)",
        "8×256×512",
        "F.rms_norm(x, (512,), w)",
        lambda x, w: F.rms_norm(x, (512,), w, 1e-6),
        ops.rms_norm,
        (tokens, weight),
    )
    yield Case(
        "rms_norm (bf16)",
        "8×256×512",
        "F.rms_norm(x, (512,))",
        lambda x: F.rms_norm(x, (512,), None, 1e-6),
        ops.rms_norm,
        (half,),
    )
    yield Case(
        "modulate",
        "8×256×512",
        "x * (1 + scale) + shift",
        lambda x, a, b: x * (1 + b) + a,
        lambda x, a, b: ops.modulate(x, a, b, limit=30.0),
        (tokens, shift, scale),
    )
    yield Case(
        "masked_attention",
        "4×8×256×64",
        "F.scaled_dot_product_attention(q, k, v, m)",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        lambda q, k, v: ops.masked_attention(q, k, v, mask),
        (q, k, v),
    )
    yield Case("sinkhorn", "256×4×4", "exp, then / sum, 20 times", plain_sinkhorn, ops.sinkhorn, (normal(256, 4, 4),))
    yield Case("sinkhorn (16)", "64×16×16", "the same", plain_sinkhorn, ops.sinkhorn, (normal(64, 16, 16),))


def losses() -> Iterator[Case]:
    labels = torch.where(padding(8, 64).flatten(), torch.randint(0, 8192, (512,)), -100)
    student, teacher = normal(512, 8, 64), torch.randn(512, 8, 64)
    cluster = torch.full((64,), 1 / 64)
    lengths, target_lengths = torch.full((32,), 48), torch.full((32,), 7)
    plates = torch.randint(1, 37, (32, 7))
    t = torch.rand(1_000_000).requires_grad_()

    def plain_pmi(z: Tensor) -> Tensor:
        p_s, p_t = (z / 0.1).softmax(-1), (teacher / 0.04).softmax(-1)
        return ((p_s * p_t) ** 0.6 / cluster).sum(-1).log()

    def plain_cosine(t: Tensor) -> Tensor:
        return torch.cos((t + 0.008) / 1.008 * torch.pi / 2) ** 2

    yield Case(
        "cross_entropy",
        "512×8192",
        "F.cross_entropy(z, y)",
        lambda z: F.cross_entropy(z, labels),
        lambda z: ops.cross_entropy(z, labels),
        (normal(512, 8192),),
    )
    yield Case(
        "beta_pmi",
        "512×8×64",
        "((p_s * p_t)**b / p_k).sum(-1).log()",
        plain_pmi,
        lambda z: ops.beta_pmi(z, teacher, cluster),
        (student,),
    )
    yield Case(
        "kl_divergence",
        "256×4096",
        "0.5 * (mu² + logvar.exp() - 1 - logvar).mean()",
        lambda mu, logvar: 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).mean(),
        ops.kl_divergence,
        (normal(256, 4096), normal(256, 4096)),
    )
    yield Case(
        "ctc_loss",
        "48×32×37",
        "F.ctc_loss(log_p, y, n, m)",
        lambda z: F.ctc_loss(z.log_softmax(-1), plates, lengths, target_lengths),
        lambda z: ops.ctc_loss(z.log_softmax(-1), plates, lengths, target_lengths),
        (normal(48, 32, 37),),
    )
    yield Case(
        "min_snr_weight",
        "1,000,000",
        "snr.clamp(max=5) / snr",
        lambda a: (a / (1 - a)).clamp(max=5) / (a / (1 - a)),
        ops.min_snr_weight,
        (t,),
    )
    yield Case(
        "decoupled_weights",
        "1,000,000",
        "2 * (1 - t).exp(), t.sqrt().exp()",
        lambda t: 2 * (1 - t).exp() + t.sqrt().exp(),
        lambda t: torch.add(*ops.decoupled_weights(t)),
        (t,),
    )
    yield Case(
        "linear_schedule",
        "1,000,000",
        "(1 - t).clamp(1e-6, 1 - 1e-6)",
        lambda t: (1 - t).clamp(1e-6, 1 - 1e-6),
        ops.linear_schedule,
        (t,),
    )
    yield Case("linear_schedule (bare)", "1,000,000", "1 - t", lambda t: 1 - t, ops.linear_schedule, (t,), judged=False)
    yield Case(
        "cosine_schedule",
        "1,000,000",
        "cos((t + s) / (1 + s) * pi / 2)²",
        plain_cosine,
        ops.cosine_schedule,
        (t,),
    )
    images, noise, times = normal(64, 3, 64, 64), torch.randn(64, 3, 64, 64), torch.rand(64, 1, 1, 1)

    def plain_noising(x: Tensor) -> Tensor:
        alpha_bar = 1 - times
        return alpha_bar.sqrt() * x + (1 - alpha_bar).sqrt() * noise

    def safe_noising(x: Tensor) -> Tensor:
        signal, level = ops.signal_and_noise(ops.linear_schedule(times))
        return signal * x + level * noise

    yield Case(
        "linear_schedule (in use)",
        "64×3×64×64",
        "a.sqrt() * x + (1 - a).sqrt() * noise",
        plain_noising,
        safe_noising,
        (images,),
    )
    ids = torch.randint(0, 151_643, (256, 4096))

    def plain_encode(ids: Tensor) -> Tensor:
        return torch.stack((ids % 256, ids // 256 % 256, ids // 65_536 % 256), -1).float() / 127.5 - 1

    yield Case("tokens_to_colour", "256×4096", "stack(id % 256, ...)", plain_encode, ops.tokens_to_colour, (ids,))


def runner(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    """Forward, and backward from a gradient made beforehand, so that nothing but the operation is timed."""
    wanted = [x for x in inputs if x.requires_grad]
    gradient = torch.rand_like(function(*inputs)) if wanted else None

    def run() -> None:
        out = function(*inputs)
        if wanted:
            torch.autograd.grad(out, wanted, gradient)

    return run


def seconds(run: Callable[[], None], repeats: int) -> float:
    begin = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - begin) / repeats


def measure(case: Case, rounds: int) -> tuple[float, float, float]:
    """Median naive time in ms, ratio safe/naive, ratio naive/naive."""
    naive, safe = runner(case.naive, case.inputs), runner(case.safe, case.inputs)
    naive(), safe()
    repeats = max(1, int(0.005 / seconds(naive, 1)))
    times, ratios, control = [], [], []
    for _ in range(rounds):
        first, ours, second = seconds(naive, repeats), seconds(safe, repeats), seconds(naive, repeats)
        times.append(first)
        ratios.append(2 * ours / (first + second))
        control.append(second / first)
    return statistics.median(times) * 1e3, statistics.median(ratios), statistics.median(control)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--only", default="", help="only cases whose name holds this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| operation | size | naive form | naive ms | safe / naive | naive / naive |")
    print("| --- | --- | --- | --- | --- | --- |")
    slow = []
    for case in cases():
        if arguments.only not in case.name:
            continue
        time_ms, ratio, control = measure(case, arguments.rounds)
        line = f"| {case.name} | {case.size} | `{case.naive_line}` | {time_ms:.2f} | {ratio:.2f} | {control:.2f} |"
        print(line, flush=True)
        if ratio > LIMIT and case.judged:
            slow.append(case.name)
    print(f"\nabove {LIMIT}: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
