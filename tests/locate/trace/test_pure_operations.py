"""What a bundle may ask a replay to call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nantrap.errors import FormatError
from nantrap.locate.trace.pure_operations import PURE, pure_operation

X = torch.tensor([1.0, 0.0])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.div.Tensor", (X, X)), ("aten._softmax.default", (X, 0, False)), ("aten.log.default", (X,)),
        ("aten.div_.Tensor", (X.clone(), X)), ("aten.gelu.default", (X,)), ("aten._to_copy.default", (X,)),
        ("aten.cat.default", ([X, X],)), ("aten.native_layer_norm.default", (X, [2], None, None, 1e-5)),
    ],
)  # fmt: skip
def test_operations_that_compute_are_run(name: str, args: tuple[Any, ...]) -> None:
    assert pure_operation(name, (args, {}))(*args) is not None


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("aten.from_file.default", ("/tmp/x", True, 8), "only operations that compute from tensors"),
        ("aten.full.default", ([1 << 40], 1.0), "only operations that compute from tensors"),
        ("aten._dir.append", ("x",), "only operations that compute from tensors"),
        ("aten.resize_.default", (X, [1 << 40]), "only operations that compute from tensors"),
        ("aten.set_.default", (X,), "only operations that compute from tensors"),
        ("aten.new_zeros.default", (X, [1 << 40]), "only operations that compute from tensors"),
        ("prim.x.y", (X,), "not an operation of PyTorch"),
        ("aten.__class__.default", (X,), "only operations that compute from tensors"),
        ("aten.div.__call__", (X, X), "has no operation"),
        ("aten.div", (X, X), "not an operation of PyTorch"),
        ("aten.expand.default", (X, [1 << 20, 2]), ""),
        ("aten.repeat.default", (X, [1 << 34]), "its result would hold"),
        ("aten.constant_pad_nd.default", (X, [0, 1 << 40]), "its result would hold"),
        ("aten.div.Tensor", (1.0, 2.0), "it is given no tensor"),
        ("aten.nope\x1b[2J.default", (X,), "not an operation of PyTorch"),
    ],
)
def test_the_rest_is_refused_with_words(name: str, args: tuple[Any, ...], words: str) -> None:
    if not words:
        assert pure_operation(name, (args, {})) is not None  # a view takes no memory
        return
    with pytest.raises(FormatError, match=words) as caught:
        pure_operation(name, (args, {}))
    assert "\x1b" not in str(caught.value)


def test_nothing_on_the_list_opens_files_or_makes_random_numbers() -> None:
    assert not PURE & {"from_file", "save", "full", "empty", "rand", "randn", "normal", "resize", "set", "to_sparse"}
