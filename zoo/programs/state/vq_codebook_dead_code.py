"""VQ-VAE with a codebook set to the mean of its assigned vectors (k-means, no smoothing): a batch in which a code wins no vector makes that row 0/0.
The loss of that step is finite; the next forward reads the NaN row.
True cause: the program itself writes sum / count with a count of zero into the codebook."""
import torch, torch.nn as nn

class Vq(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("codes", torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]))
    def forward(s, z):
        k = torch.cdist(z, s.codes).argmin(-1); q = s.codes[k]
        if s.training:
            with torch.no_grad():
                hot = nn.functional.one_hot(k, 3).float(); s.codes.copy_((hot.t() @ z) / hot.sum(0)[:, None])
        return z + (q - z).detach(), nn.functional.mse_loss(z, q)
class VqVae(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(2, 2); nn.init.eye_(s.enc.weight); nn.init.zeros_(s.enc.bias); s.vq = Vq(); s.dec = nn.Linear(2, 2)
    def forward(s, x): q, commit = s.vq(s.enc(x)); return s.dec(q), commit

def build():
    torch.manual_seed(0); model = VqVae(); opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); centre = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]).repeat(4, 1); batches = []
    for i in range(5):
        x = centre + 0.1 * torch.randn(12, 2, generator=g)
        if i == 3: x = x[:, :] * torch.tensor([1.0, 0.0])      # nothing near the third code
        batches.append(x)
    def loss_fn(m, x): y, c = m(x); return nn.functional.mse_loss(y, x) + 0.25 * c
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="state_overwritten", also=["division_by_zero", "empty_reduction", "bn_buffers_poisoned"], module="vq", phase="forward", op="aten.div", also_op=["aten.copy_"], first_bad_step=3, loss_finite_at_first_bad_step=True))
