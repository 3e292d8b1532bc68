"""A node leads back to its operation: the name a trace would give, and arguments with which it can be run again."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from nantrap.locate.nodes import ACCUMULATE, call_of, edges, operand_names, operation_name, saved_tensors


@pytest.mark.parametrize(
    ("node", "operation"),
    [
        ("LogBackward0", "log"),
        ("Log1PBackward0", "log1p"),
        ("SoftmaxBackward0", "_softmax"),
        ("LogSoftmaxBackward0", "_log_softmax"),
        ("NllLossBackward0", "nll_loss_forward"),
        ("NllLoss2DBackward0", "nll_loss2d_forward"),
        ("SmoothL1LossBackward0", "smooth_l1_loss"),
        ("ToCopyBackward0", "_to_copy"),
        ("CtcLossBackward0", "_ctc_loss"),
        ("CdistBackward0", "_cdist_forward"),
        ("LinalgSvdBackward0", "_linalg_svd"),
        ("LinalgEighBackward0", "_linalg_eigh"),
        ("StdBackward0", "std"),
        ("AddmmBackward0", "addmm"),
        ("ConvolutionBackward0", "convolution"),
        (ACCUMULATE, None),
        ("MyFunctionBackward", None),
    ],
)
def test_a_node_has_the_name_of_its_operation(node: str, operation: str | None) -> None:
    assert operation_name(node) == operation


x = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
y = torch.linspace(0.9, 0.2, 12).reshape(3, 4)
labels = torch.tensor([0, 3, 1])


@pytest.mark.parametrize(
    "operation",
    [
        lambda a: a.log(),
        lambda a: a / y,
        lambda a: a * y,
        lambda a: a**2.5,
        lambda a: a**y,
        lambda a: 2.0**a,
        lambda a: a.sum(-1),
        lambda a: a.mean(),
        lambda a: a.var(0),
        lambda a: a.std(-1, keepdim=True),
        lambda a: torch.linalg.vector_norm(a, dim=1),
        lambda a: F.mse_loss(a, y),
        lambda a: F.smooth_l1_loss(a, y, beta=0.3),
        lambda a: F.huber_loss(a, y, delta=0.2),
        lambda a: F.binary_cross_entropy(a, y),
        lambda a: F.binary_cross_entropy_with_logits(a, y),
        lambda a: F.nll_loss(a, labels, reduction="sum"),
        lambda a: torch.logsumexp(a, -1),
        lambda a: a.log_softmax(-1),
        lambda a: a[1:3],  # one slice: torch 2.6 makes two nodes of a[:, 1:3]
        lambda a: a[labels[labels < 3]],
        lambda a: a.t(),
        lambda a: a.reshape(2, 6),
        lambda a: a[:, :1].expand(3, 4),
        lambda a: torch.where(y > 0.5, a, a * 2),
        lambda a: a.half(),
        lambda a: a.acos(),
        lambda a: a.clamp(min=0.4),
        lambda a: torch.cat([a, a * 2]),
        lambda a: a @ y.t(),
    ],
)
def test_an_operation_can_be_run_again_from_its_node(operation: object) -> None:
    leaf = x.clone().requires_grad_()
    result = operation(leaf)  # type: ignore[operator]
    node = result.grad_fn
    names = operand_names(node)
    operands: dict[str, object] = {}
    for name, edge in zip(names, edges(node), strict=False):
        if edge.node is not None:
            value = leaf.detach() if edge.node.name() == ACCUMULATE else None
            if value is None:
                inner = {"MulBackward0": leaf.detach() * 2, "SliceBackward0": leaf.detach()[:, :1]}
                value = inner[edge.node.name()]
            if name in operands:
                operands[name] = [operands[name], value]
            else:
                operands[name] = value
    call = call_of(node, saved_tensors(node), operands)
    assert call is not None
    assert not call.assumed
    again = call()
    again = again[0] if isinstance(again, tuple) else again
    torch.testing.assert_close(again, result.detach(), rtol=0, atol=0)


def test_saved_tensors_of_a_checkpointed_region_are_not_recomputed() -> None:
    runs = []

    def block(a: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return a.exp()

    out = torch.utils.checkpoint.checkpoint(block, x.clone().requires_grad_(), use_reentrant=False)
    assert saved_tensors(out.grad_fn) == {}
    assert len(runs) == 1
