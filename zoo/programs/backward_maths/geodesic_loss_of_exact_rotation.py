"""Geodesic distance of rotations, acos((trace(R1 R2^T) - 1) / 2), in the loss: the predicted angle of one sample is exactly the true
one (both 0), so the argument is 1.
True cause: acos at 1."""
import torch, torch.nn as nn

def rotation(angle):
    c, s, o, i = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([c, -s, o, s, c, o, o, o, i], -1).view(-1, 3, 3)

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 16, bias=False), nn.Tanh(), nn.Linear(16, 1, bias=False))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.rand(6, generator=g) + 0.5) for _ in range(4)]
    batches[1][0][2] = 0.0; batches[1][1][2] = 0.0                                # nothing moved: angle 0, predicted 0
    def loss_fn(m, b):
        rel = rotation(m(b[0]).squeeze(-1)) @ rotation(b[1]).transpose(1, 2)
        return torch.acos(((rel.diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2).clamp(-1, 1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="loss", phase="backward", op="aten.rsqrt", first_bad_step=1,
                           loss_finite_at_first_bad_step=True))
