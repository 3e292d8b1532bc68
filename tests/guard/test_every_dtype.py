"""Every dtype in every place of a step: nothing raises, nothing is changed, and the failure beside it is named.

A tensor of each dtype is at once an input, a frozen parameter, a buffer, an output of the model and a value of the
optimizer's state, while another part of the step becomes NaN; then it is in a saved file beside a NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Guard
from nantrap.incident import Incident

FLOAT8 = [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]
PACKED = [getattr(torch, name) for name in ("float4_e2m1fn_x2",) if hasattr(torch, name)]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
BITS = [
    getattr(torch, name)
    for name in ("bit", "int1", "int4", "uint2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")
    if hasattr(torch, name)
]
PLAIN = [torch.float16, torch.bfloat16, torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool]
WHOLE = [torch.int8, torch.int16, torch.int32, torch.int64]


def made_as(dtype: torch.dtype) -> Callable[[], Tensor]:
    """A small tensor of a dtype; of those without arithmetic the bytes."""

    def make() -> Tensor:
        if dtype in (*PACKED, *BITS):
            return torch.zeros(4, 4 * dtype.itemsize, dtype=torch.uint8).view(dtype)
        return torch.ones(4, 4).to(dtype)

    return make


KINDS: dict[str, Callable[[], Tensor]] = {
    str(dtype).removeprefix("torch."): made_as(dtype) for dtype in (*FLOAT8, *PACKED, *BITS, *UNSIGNED, *PLAIN, *WHOLE)
}


class Opaque(Tensor):
    """A tensor around another one, with which almost nothing can be done."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Opaque:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, inner: Tensor) -> None:
        self.around = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Opaque(func(args[0].around))
        raise NotImplementedError(f"{func} is not for Opaque")


def made_in_inference() -> Tensor:
    """A tensor that counts no writes."""
    with torch.inference_mode():
        return torch.ones(4, 4)


def masked() -> Tensor:
    """A masked tensor, whose masked value is NaN: that is nobody's fault."""
    from torch.masked import masked_tensor

    values = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    return masked_tensor(values, torch.tensor([[True, False], [True, True]]))  # type: ignore[no-any-return]


KINDS |= {
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.quint8),
    "qint8": lambda: torch.quantize_per_channel(
        torch.ones(4, 4), torch.full((4,), 0.1), torch.zeros(4, dtype=torch.long), 0, torch.qint8
    ),
    "qint32": lambda: torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint32),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "sparse float16": lambda: torch.eye(4).half().to_sparse(),
    "compressed": lambda: torch.eye(4).to_sparse_csr(),
    "compressed columns": lambda: torch.eye(4).to_sparse_csc(),
    "blocks": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "blocks by columns": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "complex compressed": lambda: torch.eye(4).to(torch.complex64).to_sparse_csr(),
    "sparse with dense parts": lambda: torch.ones(4, 4, 2).to_sparse(1),
    "not coalesced": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (4, 4)),
    "mkldnn": lambda: torch.eye(4).to_mkldnn(),
    "quint4x2": lambda: torch.quantize_per_channel(
        torch.ones(4, 4), torch.full((4,), 0.1), torch.zeros(4), 0, torch.quint4x2
    ),
    "nested with strides": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    "masked": masked,
    "inference": made_in_inference,
    "expanded": lambda: torch.ones(1).expand(4, 4),
    "opaque": lambda: Opaque(torch.ones(4, 4)),
    "meta float8": lambda: torch.ones(4, 4, device="meta", dtype=torch.float8_e5m2),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged),
    "meta": lambda: torch.ones(4, 4, device="meta"),
    "empty": lambda: torch.ones(0, 4),
    "conjugate": lambda: torch.ones(4, 4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(4, 4, dtype=torch.complex64).conj().imag,
    "scalar": lambda: torch.tensor(1.0),
}
OWN_CLASSES = ("nested", "masked")
"""Saved as objects of their own, whose values cannot be read without making them."""
NO_PARAMETER = ("nested", "conjugate", "negative", "masked")


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("kept", KINDS[kind]())
        self.attribute = KINDS[kind]()
        if kind not in NO_PARAMETER:
            self.frozen = nn.Parameter(KINDS[kind](), requires_grad=False)

    def forward(self, x: Tensor, odd: Tensor, fails: bool) -> tuple[Tensor, Any, Tensor]:
        y = self.linear(x)
        return (y.sum() * 0).log() if fails else y.square().mean(), self.kept, odd


def trained(kind: str, form: str, folder: Path) -> Incident:
    """Three steps, the second of which fails. Returns its incident."""
    torch.manual_seed(0)
    model = Model(kind)
    optimizer = torch.optim.SGD(model.linear.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.linear.weight]["odd"] = KINDS[kind]()
    policy = nantrap.Policy(
        rollback=nantrap.Rollback(undo="always", anchor_every=1), bundle=nantrap.Bundle(kind="full")
    )
    guard = Guard(model, optimizer, run_dir=folder, quiet=True, policy=policy)
    found, around = [], KINDS[kind]()
    for step in range(3):
        batch = {"x": torch.randn(4, 3), "odd": KINDS[kind]()}
        if form == "attempt":
            outcome = guard.attempt(lambda batch: model(batch["x"], batch.get("odd", around), step == 1)[0], batch)
        else:
            optimizer.zero_grad()
            loss, *_ = model(batch["x"], batch["odd"], step == 1)
            guard.backward(loss)
            outcome = guard.step()
        assert outcome.applied is (step != 1)
        found += [outcome.incident] if outcome.incident is not None else []
    guard.close()
    (incident,) = found
    return incident


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["attempt", pytest.param("two lines", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_it_fails_and_is_explained(kind: str, form: str, tmp_path: Path) -> None:
    incident = trained(kind, form, tmp_path)
    assert not [note for note in incident.notes if "failed with" in note], incident.notes
    assert (incident.op, incident.cause and incident.cause.slug) == ("aten.log", "log_of_zero")
    assert incident.restored


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_it_is_audited(kind: str, tmp_path: Path) -> None:
    try:
        torch.save({"odd": KINDS[kind](), "bad": torch.tensor([1.0, float("nan")])}, tmp_path / "model.pt")
    except (KeyError, NotImplementedError) as error:
        pytest.skip(f"torch does not save it: {error}")
    audited = nantrap.audit(tmp_path / "model.pt")
    (checkpoint,) = audited.checkpoints
    found = [problem for problem in checkpoint.problems if problem.severity == "error"]
    assert [problem.message for problem in found if problem.code == "NT901"], found
    assert {problem.code for problem in found} <= {"NT901", *(["NT910"] if kind in OWN_CLASSES else [])}, found
    assert "bad" in repr(audited)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["attempt", "two lines"])
@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_a_quantised_base_of_torchao(config: str, form: str, tmp_path: Path) -> None:
    """The weights are tensors around others, which know few operations; an adapter beside them is trained."""
    quantization = pytest.importorskip("torchao.quantization")
    base, adapter = nn.Sequential(nn.Linear(64, 64)), nn.Linear(64, 64)
    quantization.quantize_(base.requires_grad_(False), getattr(quantization, config)())
    model = nn.ModuleDict({"base": base, "adapter": adapter})
    guard = Guard(model, torch.optim.AdamW(adapter.parameters()), run_dir=tmp_path, quiet=True)

    def loss_of(x: Tensor, fails: bool) -> Tensor:
        y = base(x) + adapter(x)
        return (y.sum() * 0).log() if fails else y.square().mean()

    outcomes = []
    for fails in (False, True, False):
        batch = torch.randn(8, 64)
        if form == "attempt":
            outcomes.append(guard.attempt(lambda x: loss_of(x, fails), batch))
        else:
            guard.backward(loss_of(batch, fails))
            outcomes.append(guard.step())
    assert [outcome.applied for outcome in outcomes] == [True, False, True]
    incident = outcomes[1].incident
    assert incident is not None
    assert incident.op == "aten.log"
    assert not [note for note in incident.notes if "failed with" in note], incident.notes
