"""A depth model in half precision with F.mse_loss on its half outputs: the targets are millimetres, an error of 300 squares to more than 65504.
True cause: the loss is computed in fp16; the outputs are finite, and the same loss of their fp32 copies is finite."""
import torch, torch.nn as nn

class Depth(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv1d(2, 6, 3, padding=1); s.out = nn.Conv1d(6, 1, 1)
    def forward(s, x): return s.out(nn.functional.softplus(s.conv(x))) * 10.0

def build():
    torch.manual_seed(0); model = Depth().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-5); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 2, 8, generator=g).half(), (torch.rand(2, 1, 8, generator=g) * (500.0 if i == 2 else 90.0)).half()) for i in range(4)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=2))
