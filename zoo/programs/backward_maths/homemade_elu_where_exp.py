"""Home-made ELU: where(x > 0, x, exp(x) - 1). For x = 150 exp overflows in the branch that is not taken: output fine, gradient 0 * Inf.
True cause: unselected branch of torch.where (a branch not used in the forward still gets a zero gradient times Inf)."""
import torch, torch.nn as nn

class MyELU(nn.Module):
    def forward(s, x): return torch.where(x > 0, x, torch.exp(x) - 1)
class Critic(nn.Module):
    def __init__(s): super().__init__(); s.fc1 = nn.Linear(4, 24); s.act1 = MyELU(); s.fc2 = nn.Linear(24, 24); s.act2 = nn.Tanh(); s.q = nn.Linear(24, 2)
    def forward(s, o): return s.q(s.act2(0.1 * s.fc2(s.act1(s.fc1(o)))))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Critic(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        obs = torch.randn(8, 4, generator=g)
        if i >= 5: obs = obs * 3; obs[2, 1] = 400.0                 # the cart left the track: large but legal position
        batches.append((obs, torch.randint(0, 2, (8,), generator=g), torch.randn(8, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]).gather(1, b[1][:, None]).squeeze(1), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="act1", phase="backward", op="aten.mul", first_bad_step=5, loss_finite_at_first_bad_step=True))
