"""Every layout and dtype of torch in every place of a step, healthy and sick: nothing of ours raises.

A tensor is in the batch, a buffer, a probe, a watched value, or what the loss is computed from. A rule, a probe or a
statistic that does not take it would leave a note in the incident, or end the diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import nantrap
from nantrap import Policy

Made = Callable[[float], Tensor]
"""Makes a tensor that holds a given value, as far as its dtype can."""


def dense(value: float, *shape: int) -> Tensor:
    values = torch.arange(1.0, 1.0 + torch.Size(shape or (4, 4)).numel()).reshape(shape or (4, 4))
    values.view(-1)[1] = value
    return values


def coalesced(value: float) -> Tensor:
    return dense(value).to_sparse_coo()


def uncoalesced(value: float) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, value]), (4, 4))


def hybrid(value: float) -> Tensor:
    return dense(value).to_sparse(1)


class Marked(Tensor):
    """A subclass without an own behaviour."""


class Wrapper(Tensor):
    """A subclass that holds another tensor and runs every operation on it."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )
        made.held = inner
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Wrapper({self.held})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def unwrap(value: Any) -> Any:
            if isinstance(value, Wrapper):
                return value.held
            return type(value)(map(unwrap, value)) if type(value) in (list, tuple) else value

        result = func(*map(unwrap, args), **{key: unwrap(value) for key, value in (kwargs or {}).items()})
        return Wrapper(result) if isinstance(result, Tensor) else result


def distributed(value: float) -> Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return distribute_tensor(dense(value), init_device_mesh("cpu", (1,)))


def nested(layout: torch.layout) -> Made:
    return lambda value: torch.nested.nested_tensor([dense(value, 2, 3), dense(1.0, 1, 3)], layout=layout)


def converted(dtype: torch.dtype) -> Made:
    return lambda value: dense(value).to(dtype)


def whole(dtype: torch.dtype) -> Made:
    return lambda _value: dense(0.0).to(dtype)


def compressed(layout: torch.layout, **options: Any) -> Made:
    return lambda value: dense(value).to_sparse(layout=layout, **options)


TENSORS: dict[str, Made] = {
    "dense": dense,
    "zero-dimensional": torch.tensor,
    "empty": lambda _value: torch.empty(0, 4),
    "meta": lambda _value: torch.empty(4, 4, device="meta"),
    "sparse COO": coalesced,
    "sparse COO, not coalesced": uncoalesced,
    "sparse COO, hybrid": hybrid,
    "sparse COO, empty": lambda _value: torch.zeros(4, 4).to_sparse_coo(),
    "sparse CSR": compressed(torch.sparse_csr),
    "sparse CSC": compressed(torch.sparse_csc),
    "sparse BSR": compressed(torch.sparse_bsr, blocksize=(2, 2)),
    "sparse BSC": compressed(torch.sparse_bsc, blocksize=(2, 2)),
    "MKL-DNN": lambda value: dense(value).to_mkldnn(),
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
    "per-tensor quantised": lambda _value: torch.quantize_per_tensor(dense(1.0), 0.1, 0, torch.qint8),
    "per-channel quantised": lambda _value: torch.quantize_per_channel(
        dense(1.0), torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int64), 0, torch.qint8
    ),
    "subclass": lambda value: dense(value).as_subclass(Marked),
    "wrapper": lambda value: Wrapper(dense(value)),
    "DTensor": distributed,
    "conjugate": lambda value: torch.complex(dense(value), dense(1.0)).conj(),
    "negative view": lambda value: torch.complex(dense(1.0), dense(value)).conj().imag,
    "expanded": lambda value: torch.tensor([[value]]).expand(4, 4),
    "scaled complex": lambda value: torch.complex(dense(value).half(), dense(1.0).half()),
}
TENSORS |= {
    str(dtype).removeprefix("torch."): converted(dtype)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
}
TENSORS |= {
    name: converted(getattr(torch, name))
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
}
TENSORS |= {
    name: whole(getattr(torch, name))
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
}
if hasattr(torch, "float4_e2m1fn_x2"):
    TENSORS["float4_e2m1fn_x2"] = lambda _value: torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


class Model(nn.Module):
    """A linear layer, with a buffer that a pass replaces and a probe."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.register_buffer("table", table)

    def forward(self, x: Tensor, extra: Tensor) -> Tensor:
        nantrap.probe("extra", extra)
        return self.inner(x)  # type: ignore[no-any-return]


def as_numbers(tensor: Tensor) -> Tensor:
    """The sum of a tensor by operations of its own layout, as far as they exist."""
    if tensor.is_meta or tensor.numel() == 0 or isinstance(tensor, Wrapper):
        return torch.zeros(())
    if tensor.is_quantized:
        return tensor.dequantize().sum()
    if tensor.is_nested:
        return sum((part.sum() for part in tensor.unbind()), torch.zeros(()))
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor().sum()  # type: ignore[no-any-return]
    if tensor.is_mkldnn or tensor.layout not in (torch.strided, torch.sparse_coo):
        return tensor.to_dense().sum()
    if tensor.is_complex():
        return tensor.abs().float().sum()
    if tensor.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64) or tensor.itemsize == 1:
        return tensor.to(torch.float32).sum() if "float4" not in str(tensor.dtype) else torch.zeros(())
    return torch.sparse.sum(tensor) if tensor.is_sparse else tensor.sum()


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def incidents(make: Made, value: float, form: str, *, sick: bool) -> list[nantrap.Incident]:
    """Train three steps with such a tensor in every place; the second one fails if it is to be sick."""
    torch.manual_seed(0)
    model = Model(make(1.0))
    found = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    policy = Policy(diagnosis=nantrap.Diagnosis(repeats=9), max_consecutive_skips=9)
    watch = ["table"] if model.table.numel() else []
    with nantrap.Guard(model, optimizer, policy=policy, watch=watch, quiet=True) as guard:
        for step in range(3):
            bad = sick and step == 1
            batch = {"x": torch.ones(4, 4), "extra": make(value if bad else 1.0)}

            def loss_of(batch: dict[str, Tensor], bad: bool = bad) -> Tensor:
                total = model(batch["x"], batch["extra"]).square().mean() * (1 + 0 * as_numbers(batch["extra"]))
                return total + torch.log(0 * total) if bad else total

            if form == "attempt":
                outcome = guard.attempt(loss_of, batch)
            else:
                guard.backward(loss_of(batch))
                outcome = guard.step()
            if outcome.incident is not None:
                found.append(outcome.incident)
    return found


def complaints(incident: nantrap.Incident) -> list[str]:
    """What of the incident speaks of a failure of our own."""
    said = [*incident.notes, *(trial.note for trial in incident.trials)]
    return [text for text in said if "failed:" in text or "failed with" in text or "Error" in text]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", ["attempt", "two lines"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_healthy_run_is_left_alone(name: str, form: str) -> None:
    assert not incidents(TENSORS[name], 1.0, form, sick=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("value", [1.0, float("nan")])
@pytest.mark.parametrize("form", ["attempt", "two lines"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_failure_is_diagnosed(name: str, form: str, value: float) -> None:
    (incident,) = incidents(TENSORS[name], value, form, sick=True)
    assert complaints(incident) == []


class Embedded(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long().clamp(0, 7))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """One parameter of some dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).abs()


PARAMETERS: dict[str, Callable[[], nn.Module]] = {
    "sparse gradients": Embedded,
    "complex64": lambda: Scaled(torch.complex64),
    "complex128": lambda: Scaled(torch.complex128),
    "float64": lambda: Scaled(torch.float64),
    "bfloat16": lambda: Scaled(torch.bfloat16),
    "float16": lambda: Scaled(torch.float16),
}


@pytest.mark.parametrize("fault", ["none", "log", "sqrt", "division", "overflow"])
@pytest.mark.parametrize("form", ["attempt", "two lines"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_gradients_of_every_kind(name: str, form: str, fault: str) -> None:
    model = PARAMETERS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    faults: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda y: y.mean(),
        "log": lambda y: torch.log(0 * y).mean(),
        "sqrt": lambda y: torch.sqrt(0 * y).mean(),
        "division": lambda y: (y / (0 * y)).mean(),
        "overflow": lambda y: (y * 1e38 * 1e38 * 1e300).mean(),
    }

    def loss_of(x: Tensor) -> Tensor:
        return faults[fault](model(x))

    with nantrap.Guard(model, optimizer, max_grad_norm=None, quiet=True) as guard:
        if form == "attempt":
            outcome = guard.attempt(loss_of, torch.ones(3, 4))
        else:
            guard.backward(loss_of(torch.ones(3, 4)))
            outcome = guard.step()
    assert outcome.applied == (fault == "none")
    if outcome.incident is not None:
        assert complaints(outcome.incident) == []
