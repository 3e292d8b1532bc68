"""Robot head: joint angle = asin(tanh(h)). In batch 2 one reading is 60 (large but legal), tanh saturates to exactly 1.0
and asin'(1) is infinite. A backward hook and two parameter groups are there too, and are innocent."""
import torch
import torch.nn as nn
class JointHead(nn.Module):
    def forward(self, h): return torch.asin(torch.tanh(h))
class Arm(nn.Module):
    def __init__(self):
        super().__init__(); self.gain = nn.Parameter(torch.ones(3)); self.head = JointHead(); self.fk = nn.Linear(3, 2)
    def forward(self, x): return self.fk(self.head(self.gain * x))
def build():
    torch.manual_seed(0); model = Arm(); model.fk.register_full_backward_hook(lambda m, gi, go: None)
    opt = torch.optim.SGD([{"params": [model.gain], "lr": 1e-3}, {"params": model.fk.parameters(), "lr": 1e-2}], lr=1e-2)
    g = torch.Generator().manual_seed(0); xs = [torch.randn(8, 3, generator=g) for _ in range(5)]; xs[2][4, 1] = 60.0
    data = [(x, torch.tanh(x[:, :2])) for x in xs]
    def loss_fn(m, batch):
        x, y = batch; return (m(x) - y).square().mean()
    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="head", phase="backward", op="aten.rsqrt", first_bad_step=2, loss_finite_at_first_bad_step=True,
                           also=["input_out_of_scale"], why="tanh(60) is exactly 1.0 and the derivative of asin there is 1/sqrt(0)."))
