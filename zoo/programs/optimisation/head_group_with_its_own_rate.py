"""A linear probe on a frozen body, with two parameter groups: 0.01 for the bias and, by a slip, 8.0 for the weight. The head oscillates, each step wider.
True cause: the rate of head.weight; a tenth of it is stable on the same batches."""
import torch, torch.nn as nn

class Probe(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(6, 20), nn.Tanh()).requires_grad_(False); s.head = nn.Linear(20, 2)
    def forward(s, x): return s.head(s.body(x))

def build():
    torch.manual_seed(0); model = Probe(); opt = torch.optim.SGD([dict(params=[model.head.bias], lr=0.01), dict(params=[model.head.weight], lr=8.0)])
    g = torch.Generator().manual_seed(1); batches = [{"x": torch.randn(12, 6, generator=g), "y": torch.randn(12, 2, generator=g)} for _ in range(22)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b["x"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=22, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=20))
