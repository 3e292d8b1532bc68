"""VQ-VAE with exponential averages: inside forward, under no_grad, the codes become sum / count. A code without members has count 0 after
the averages decayed to exactly 0 (decay 0): the forward pass writes NaN into a parameter.
True cause: the program overwrites its own codes with 0/0."""
import torch, torch.nn as nn

class VQ(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 3); s.codes = nn.Parameter(torch.randn(4, 3), requires_grad=False); s.dec = nn.Linear(3, 5)
    def forward(s, x):
        z = s.enc(x); i = torch.cdist(z, s.codes).argmin(-1)
        with torch.no_grad():
            hot = nn.functional.one_hot(i, 4).float()
            s.codes.copy_((hot.T @ z) / hot.sum(0)[:, None])
        q = s.codes[i]; return s.dec(z + (q - z).detach()), (z - q).square().mean()
def build():
    torch.manual_seed(0); model = VQ(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.codes.copy_(torch.tensor([[1., 1, 0], [-1, 1, 0], [0, -1, 1], [0, 0, -1]]))
    batches = [torch.randn(64, 5, generator=g) * 2 for _ in range(5)]; batches[2] = batches[2][:1].expand(8, 5).clone()
    def loss_fn(m, x): y, c = m(x); return (y - x).square().mean() + c
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="state_overwritten", also=["division_by_zero", "empty_reduction"], module="loss", phase="forward", op="aten.div", first_bad_step=2,
                           never_said=["replace the device"]))
