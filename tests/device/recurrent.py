"""The two cells of recurrent networks that PyTorch asks a device for by name, and that no CPU kernel gives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library


def register(library: Library) -> None:
    """Make LSTM and GRU layers run on the device."""
    for function in (lstm_cell, lstm_cell_backward_impl, gru_cell, gru_cell_backward):
        library.impl(f"_thnn_fused_{function.__name__}", function, "PrivateUse1")


def lstm_cell(
    x_gates: Tensor, h_gates: Tensor, cx: Tensor, x_bias: Tensor | None = None, h_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM: hidden state, cell state, and the gates for the way back."""
    total = _with(x_gates, x_bias) + _with(h_gates, h_bias)
    i, f, g, o = total.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward_impl(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the gates, of the cell state before, and of the biases."""
    i, f, g, o = gates.chunk(4, 1)
    bent = cy.tanh()
    grad_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_h * o * (1 - bent * bent) + (0 if grad_cy is None else grad_cy)
    parts = [
        grad_c * g * i * (1 - i),
        grad_c * cx * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * bent * o * (1 - o),
    ]
    grad = torch.cat(parts, 1)
    return grad, grad_c * f, grad.sum(0) if has_bias else grad.new_empty(0)


def gru_cell(
    x_gates: Tensor, h_gates: Tensor, hx: Tensor, x_bias: Tensor | None = None, h_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One step of a GRU: hidden state, and what the way back needs."""
    x_r, x_z, x_n = _with(x_gates, x_bias).chunk(3, 1)
    h_r, h_z, h_n = _with(h_gates, h_bias).chunk(3, 1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, h_n], 1)


def gru_cell_backward(grad_hy: Tensor, kept: Tensor, has_bias: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of both kinds of gates, of the hidden state before, and of the biases."""
    r, z, n, hx, h_n = kept.chunk(5, 1)
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_z = grad_hy * (hx - n) * z * (1 - z)
    grad_r = grad_n * h_n * r * (1 - r)
    x_grad, h_grad = torch.cat([grad_r, grad_z, grad_n], 1), torch.cat([grad_r, grad_z, grad_n * r], 1)
    nothing = grad_hy.new_empty(0)
    return x_grad, h_grad, grad_hy * z, *((x_grad.sum(0), h_grad.sum(0)) if has_bias else (nothing, nothing))


def _with(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias
