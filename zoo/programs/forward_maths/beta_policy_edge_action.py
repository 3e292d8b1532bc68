"""PPO with a Beta policy: an action clipped to the edge of the box is stored as exactly 1.0, its log-density is -Inf or Inf.
True cause: log of zero inside the distribution."""
import torch, torch.nn as nn

class Policy(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh()); s.ab = nn.Linear(16, 2)
    def forward(s, o): a, b = (nn.functional.softplus(s.ab(s.body(o))) + 1.0).chunk(2, -1); return torch.distributions.Beta(a.squeeze(-1), b.squeeze(-1))

def build():
    torch.manual_seed(0); model = Policy(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        act = torch.rand(8, generator=g) * 0.8 + 0.1
        if i == 4: act[5] = 1.0
        batches.append(dict(obs=torch.randn(8, 3, generator=g), act=act, adv=torch.randn(8, generator=g)))
    def loss_fn(m, b): d = m(b["obs"]); return -(d.log_prob(b["act"]) * b["adv"]).mean() - 0.01 * d.entropy().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.xlogy", first_bad_step=4))
