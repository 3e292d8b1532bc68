"""A hazard model: one batch has ages in days instead of years."""
import torch, torch.nn as nn, torch.nn.functional as F

class Hazard(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(3, 1); s.lin.weight.data.fill_(0.02); s.lin.bias.data.zero_()
    def forward(s, x): return torch.exp(s.lin(x).squeeze(-1))
def build():
    torch.manual_seed(0); model = nn.Sequential(Hazard()); opt = torch.optim.SGD(model.parameters(), lr=1e-7); g = torch.Generator().manual_seed(1)
    def rows(scale): x = torch.rand(8, 3, generator=g); x[:, 0] = (20 + 60 * x[:, 0]) * scale; return x
    batches = [(rows(1), torch.rand(8, generator=g)) for _ in range(5)] + [(rows(365), torch.rand(8, generator=g))]
    def loss_fn(m, b): h = m(b[0]); return (h * b[1] - h.log()).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=["exp_overflow"], module="0", phase="forward", op="aten.exp", first_bad_step=5, line="torch.exp(s.lin(x)"))
