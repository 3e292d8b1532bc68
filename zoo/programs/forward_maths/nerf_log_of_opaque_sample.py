"""NeRF: transmittance as exp(cumsum(log(1 - alpha))). An opaque sample has alpha of exactly 1: the forward is finite (exp(-Inf) = 0), the backward is 0 * Inf.
True cause: log of an exact zero."""
import torch, torch.nn as nn

class Field(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(3, 16), nn.Softplus()); s.sigma = nn.Linear(16, 1); s.rgb = nn.Linear(16, 3)
    def forward(s, x): h = s.net(x); return torch.relu(s.sigma(h)).squeeze(-1), torch.sigmoid(s.rgb(h))
def render(sigma, rgb, delta):
    alpha = 1 - torch.exp(-sigma * delta); trans = torch.exp(torch.cumsum(torch.log(1 - alpha), -1))
    trans = torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], -1)
    return ((trans * alpha)[..., None] * rgb).sum(1)

def build():
    torch.manual_seed(0); model = Field(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.sigma.weight.abs_(); model.sigma.bias.fill_(1.0)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        delta = torch.full((4, 6), 0.1)
        if i == 3: delta[2, 3] = 1e3                           # the usual far plane, put in the middle by a sort
        batches.append((torch.randn(4, 6, 3, generator=g), delta, torch.rand(4, 3, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(render(*m(b[0]), b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", also_phase=["backward"], also_op=["aten.div", "aten.mul"], first_bad_step=3, loss_finite_at_first_bad_step=True))
