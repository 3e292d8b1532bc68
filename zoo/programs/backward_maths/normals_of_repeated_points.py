"""Point-cloud denoising with a normal-consistency loss: normals are the smallest eigenvector of each neighbourhood's covariance. The
collate function pads a sparse patch by repeating one point, so that covariance is exactly 0 and all its eigenvalues coincide.
True cause: repeated (zero) spectrum in the backward of eigh; forward and loss are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Normals(nn.Module):
    def forward(s, p):                                                      # (patches, 8 neighbours, 3)
        c = p - p.mean(1, keepdim=True); lam, vec = torch.linalg.eigh(c.transpose(1, 2) @ c / 8)
        return vec[..., 0], lam[..., 0] / (lam.sum(-1) + 1e-6)
class Denoiser(nn.Module):
    def __init__(s):
        super().__init__(); s.move = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 3)); s.normals = Normals()
    def forward(s, p): q = p + 0.1 * s.move(p); return q, *s.normals(q)

def build():
    torch.manual_seed(12); model = Denoiser(); opt = torch.optim.SGD(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(16); batches = []
    for i in range(7):
        p = torch.randn(6, 8, 3, generator=g) * torch.tensor([1.0, 0.8, 0.1])
        if i == 4: p[2] = p[2, :1]                                           # padded patch: one point, eight times
        batches.append(dict(noisy=p, clean=p * torch.tensor([1.0, 1.0, 0.2]), normal=torch.tensor([0.0, 0.0, 1.0]).expand(6, 3)))
    def loss_fn(m, b):
        q, n, curv = m(b["noisy"])
        return nn.functional.mse_loss(q, b["clean"]) + 0.1 * (1 - (n * b["normal"]).sum(-1) ** 2).mean() + 0.01 * curv.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="normals", phase="backward", op="aten.div_", first_bad_step=4,
                           loss_finite_at_first_bad_step=True))
