"""What every operation keeps to, whatever it computes: one table of calls, one test a promise."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nantrap import ops

PADDING = torch.tensor([[True, True, True, False], [False, False, False, False], [True, False, False, False]])
LABELS = torch.tensor([1, -100, 3])
PLATES = torch.tensor([[1, 2], [3, 3]])
CLUSTERS = torch.tensor([0.1, 0.2, 0.3, 0.4])
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


class Call(NamedTuple):
    name: str
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]  # float64, inside the domain, smooth there
    ulps: float = 4.0  # of the result's dtype, from the float64 result on the same inputs
    roundings: float = 32.0  # of the largest gradient, in its dtype, from the float64 gradient
    loss: bool = False  # the result of half precision is float32
    whole: bool = True  # torch's CTC kernel has no second derivative and cannot be compiled


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) * 0.8 + 0.1


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def calls() -> list[Call]:
    torch.manual_seed(0)
    return [
        Call("safe_log", ops.safe_log, (positive(3, 4),)),
        Call("safe_sqrt", ops.safe_sqrt, (positive(3, 4),)),
        Call("safe_pow", lambda x: ops.safe_pow(x, 0.3), (positive(3, 4),)),
        Call("safe_pow", lambda x: ops.safe_pow(x, -1.5), (positive(3, 4),)),
        Call("safe_pow", lambda x, p: ops.safe_pow(x, p), (positive(3, 4), positive(4))),
        Call("safe_divide", ops.safe_divide, (normal(3, 4), positive(3, 4) * normal(3, 1).sign())),
        Call("safe_divide", ops.safe_divide, (normal(3, 4), positive(3, 1))),
        Call("safe_acos", ops.safe_acos, (positive(3, 4) * 2 - 1,)),
        Call("safe_asin", ops.safe_asin, (positive(3, 4) * 2 - 1,)),
        Call("xlogx", ops.xlogx, (positive(3, 4),)),
        Call("safe_norm", lambda x: ops.safe_norm(x, -1), (normal(3, 4),)),
        Call("safe_norm", lambda x: ops.safe_norm(x, (0, 2), keepdim=True), (normal(3, 4, 2),)),
        Call("safe_var", lambda x: ops.safe_var(x, -1), (normal(3, 4),)),
        Call("safe_std", lambda x: ops.safe_std(x, -1), (normal(3, 4),)),
        Call("rms_norm", ops.rms_norm, (normal(3, 4), normal(4))),
        Call("masked_softmax", lambda x: ops.masked_softmax(x, PADDING), (normal(3, 4),)),
        Call("masked_softmax", lambda x: ops.masked_softmax(x, PADDING, dim=0), (normal(3, 4),)),
        Call(
            "masked_log_softmax", lambda x: ops.masked_log_softmax(x, PADDING[[0, 2]]).clamp(min=-1e3), (normal(2, 4),)
        ),
        Call("masked_mean", lambda x: ops.masked_mean(x, PADDING, -1), (normal(3, 4),)),
        Call("masked_mse", lambda x, y: ops.masked_mse(x, y, PADDING), (normal(3, 4), normal(3, 4)), loss=True),
        Call(
            "masked_attention",
            lambda q, k, v: ops.masked_attention(q, k, v, PADDING[:, None]),
            (normal(3, 2, 4), normal(3, 4, 4), normal(3, 4, 4)),
            ulps=64,
        ),
        Call("cross_entropy", lambda z: ops.cross_entropy(z, LABELS), (normal(3, 4),), loss=True),
        Call(
            "cross_entropy",
            lambda z: ops.cross_entropy(z, LABELS, weight=CLUSTERS, label_smoothing=0.1),
            (normal(3, 4),),
            loss=True,
        ),
        Call(
            "ctc_loss",
            lambda z: ops.ctc_loss(z.log_softmax(-1), PLATES, (4, 2), (2, 2)),
            (normal(4, 2, 5),),
            ulps=2**14,  # log_softmax of half precision goes before
            loss=True,
            whole=False,
        ),
        Call("kl_divergence", ops.kl_divergence, (normal(3, 4), normal(3, 4)), loss=True),
        Call(
            "beta_pmi", lambda z, y: ops.beta_pmi(z, y, CLUSTERS.to(z)), (normal(3, 4), normal(3, 4)), 2**14, loss=True
        ),
        Call("temperature_softmax", lambda z: ops.temperature_softmax(z, 0.5), (normal(3, 4),)),
        Call("temperature_softmax", ops.temperature_softmax, (normal(3, 4), positive(3, 1))),
        Call("temperature_log_softmax", lambda z: ops.temperature_log_softmax(z, 0.5), (normal(3, 4),)),
        Call("normalize_weights", ops.normalize_weights, (positive(3, 4),)),
        Call(
            "sinkhorn", lambda z: ops.sinkhorn(z, iterations=3), (normal(2, 3, 3),), ulps=8, roundings=256
        ),  # its gradient cancels
        Call(
            "modulate", lambda *a: ops.modulate(*a, limit=30.0), (normal(2, 3, 4), normal(2, 1, 4), normal(2, 1, 4)), 8
        ),
        Call("linear_schedule", ops.linear_schedule, (positive(5),), loss=True),
        Call("cosine_schedule", ops.cosine_schedule, (positive(5),), loss=True),
        Call("signal_and_noise", lambda a: torch.stack(ops.signal_and_noise(a)), (positive(5),), loss=True),
        Call("min_snr_weight", ops.min_snr_weight, (positive(5),), loss=True),
        Call("min_snr_weight", lambda a: ops.min_snr_weight(a, prediction="sample"), (positive(5),), loss=True),
        Call("min_snr_weight", lambda a: ops.min_snr_weight(a, prediction="velocity"), (positive(5),), loss=True),
        Call("decoupled_weights", lambda t: torch.stack(ops.decoupled_weights(t)), (positive(5),), loss=True),
    ]


CALLS = calls()
OTHERWISE = {"AdaLNZero", "MaskedAttention", "RMSNorm", "Sinkhorn"}  # modules on the functions above
WITHOUT_GRADIENT = {"tokens_to_colour", "colour_to_tokens", "ctc_feasible", "reference"}  # the last names a function

every_call = pytest.mark.parametrize("call", CALLS, ids=[f"{c.name}-{i}" for i, c in enumerate(CALLS)])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
# torch's own compiler instantiates autograd functions and warns itself about it
torch_compiles_functions = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def leaves(call: Call, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [x.to(dtype, copy=True).requires_grad_() for x in call.inputs]


def gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    out = function(*inputs).double()
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64)  # a plain sum of a softmax has no gradient
    return torch.autograd.grad((out * weights.view_as(out)).sum(), inputs)


def test_every_public_name_is_in_the_table() -> None:
    assert {c.name for c in CALLS} | OTHERWISE | WITHOUT_GRADIENT == set(ops.__all__)
    assert sorted(ops.__all__) == ops.__all__


@pytest.mark.parametrize("name", ops.__all__)
def test_every_public_name_says_what_it_does_with_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(getattr(ops, name)) or "")


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(ops.__path__)])
def test_examples_run(module: str) -> None:
    loaded = importlib.import_module(f"nantrap.ops.{module}")
    assert doctest.testmod(loaded, extraglobs={"torch": torch}).failed == 0


def test_ops_import_torch_alone() -> None:
    allowed = {"__future__", "collections", "math", "nantrap", "torch", "typing"}
    for file in Path(ops.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] in allowed, (file.name, name)
                assert not name.startswith("nantrap") or name.startswith("nantrap.ops"), (file.name, name)


@every_call
def test_gradient_and_second_derivative_are_right(call: Call) -> None:
    inputs = leaves(call)
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no second derivative
        assert torch.autograd.gradcheck(call.function, inputs)
        if call.whole:
            assert torch.autograd.gradgradcheck(call.function, inputs)


@every_call
@every_dtype
def test_value_is_that_of_float64(call: Call, dtype: torch.dtype, ulps) -> None:
    inputs = [x.to(dtype) for x in call.inputs]
    out = call.function(*inputs)
    half = dtype in (torch.float16, torch.bfloat16)
    assert out.dtype == (torch.float32 if half and call.loss else dtype)
    assert ulps(out, call.function(*[x.double() for x in inputs])) <= call.ulps


@every_call
@every_dtype
def test_gradient_is_that_of_float64(call: Call, dtype: torch.dtype) -> None:
    """Within the rounding of its operations, relative to the largest gradient; other CPUs round otherwise."""
    inputs = leaves(call, dtype)
    ours = gradients(call.function, inputs)
    exact = gradients(call.function, [x.detach().double().requires_grad_() for x in inputs])
    for gradient, reference in zip(ours, exact, strict=True):
        assert gradient.dtype == dtype
        tolerance = call.roundings * torch.finfo(dtype).eps * float(reference.abs().max()) + torch.finfo(dtype).tiny
        torch.testing.assert_close(gradient.double(), reference, rtol=0, atol=tolerance)


@pytest.mark.parametrize("call", [c for c in CALLS if c.whole], ids=lambda c: c.name)
@torch_compiles_functions
def test_compiles_to_one_graph(call: Call) -> None:
    torch.compiler.reset()
    compiled = torch.compile(call.function, fullgraph=True, backend="aot_eager")
    inputs = leaves(call, torch.float32)
    torch.testing.assert_close(compiled(*inputs), call.function(*inputs))
    for ours, eager in zip(gradients(compiled, inputs), gradients(call.function, inputs), strict=True):
        torch.testing.assert_close(ours, eager)


@every_call
def test_never_waits_for_the_device(call: Call, host_reads) -> None:
    inputs = leaves(call, torch.float32)
    with host_reads() as reads:
        gradients(call.function, inputs)
    assert reads.count == 0


def test_the_counter_of_host_reads_counts(host_reads) -> None:
    with host_reads() as reads:
        bool(torch.ones(2).any())
    assert reads.count == 1


@every_call
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_autocast_changes_nothing(call: Call, dtype: torch.dtype) -> None:
    """Sums and exponentials of half-precision activations are in float32 inside autocast, as they are outside."""
    inputs = [x.to(dtype) for x in call.inputs]
    outside = call.function(*inputs)
    with torch.autocast("cpu", dtype=dtype):
        inside = call.function(*inputs)
    torch.testing.assert_close(inside.double(), outside.double(), rtol=4 * torch.finfo(dtype).eps, atol=1e-3)


@every_call
@every_dtype
def test_a_nan_that_comes_in_comes_out(call: Call, dtype: torch.dtype) -> None:
    for position in range(len(call.inputs)):
        inputs = [x.to(dtype) for x in call.inputs]
        inputs[position] = inputs[position].clone()
        inputs[position].view(-1)[0] = torch.nan  # a position that every mask of the table keeps
        assert call.function(*inputs).isnan().any(), f"input {position}"


EMPTY = [
    ("safe_log", ops.safe_log, (0, 4)),
    ("safe_sqrt", ops.safe_sqrt, (0, 4)),
    ("safe_pow", lambda x: ops.safe_pow(x, 0.5), (0, 4)),
    ("safe_divide", lambda x: ops.safe_divide(x, x), (0, 4)),
    ("safe_norm rows", lambda x: ops.safe_norm(x, -1), (0, 4)),
    ("safe_norm nothing", lambda x: ops.safe_norm(x, -1), (3, 0)),
    ("safe_std rows", lambda x: ops.safe_std(x, -1), (0, 4)),
    ("safe_std nothing", lambda x: ops.safe_std(x, -1), (3, 0)),
    ("safe_var nothing", lambda x: ops.safe_var(x, -1), (3, 0)),
    ("rms_norm", ops.rms_norm, (0, 4)),
    ("masked_softmax rows", lambda x: ops.masked_softmax(x, x > 0), (0, 4)),
    ("masked_softmax nothing", lambda x: ops.masked_softmax(x, x > 0), (3, 0)),
    ("masked_log_softmax nothing", lambda x: ops.masked_log_softmax(x, x > 0), (3, 0)),
    ("temperature_softmax", lambda x: ops.temperature_softmax(x, 0.1), (3, 0)),
    ("masked_mean", lambda x: ops.masked_mean(x, x > 0), (0, 4)),
    ("masked_mean rows", lambda x: ops.masked_mean(x, x > 0, -1), (3, 0)),
    ("masked_mse", lambda x: ops.masked_mse(x, x, x > 0), (0,)),
    (
        "masked_attention no keys",
        lambda x: ops.masked_attention(x.new_zeros(2, 5, 4), x, x, x.new_zeros(2, 5, 0) > 0),
        (2, 0, 4),
    ),
    ("cross_entropy", lambda x: ops.cross_entropy(x, torch.zeros(0, dtype=torch.long)), (0, 4)),
    ("normalize_weights", ops.normalize_weights, (3, 0)),
    ("sinkhorn", ops.sinkhorn, (0, 4, 4)),
]


@pytest.mark.parametrize(("function", "shape"), [c[1:] for c in EMPTY], ids=[c[0] for c in EMPTY])
def test_nothing_in_is_finite_out(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    out = function(x)
    assert out.isfinite().all()
    out.sum().backward()
    assert x.grad is not None


@torch_compiles_functions
def test_compiles_to_one_graph_as_modules() -> None:
    torch.compiler.reset()
    model = torch.nn.Sequential(ops.RMSNorm(8), ops.MaskedAttention(8, heads=2))
    x = torch.randn(2, 3, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


def test_gradients_are_right_in_anomaly_mode() -> None:
    """No operation makes a NaN on its way to a finite gradient: anomaly mode would stop at it."""
    x = torch.zeros(3, 4, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        total = ops.safe_sqrt(x) + ops.safe_log(x) + ops.xlogx(x) + ops.safe_pow(x, 0.5) + ops.safe_acos(1 + x)
        total = total + ops.safe_divide(x, x) + ops.masked_softmax(x, PADDING) + ops.rms_norm(x)
        total = total.sum() + ops.safe_norm(x) + ops.safe_std(x) + F.relu(ops.normalize_weights(x)).sum()
        (0 * total).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
