"""Rotation regression: the angle between two unit quaternions that are equal, through acos in the loss."""
import torch, torch.nn as nn, torch.nn.functional as F

class Pose(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(4, 4); s.net.weight.data.copy_(torch.eye(4)); s.net.bias.data.zero_()
    def forward(s, x): q = s.net(x); return q / q.norm(dim=-1, keepdim=True)
def build():
    torch.manual_seed(0); model = Pose(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 4, generator=g), F.normalize(torch.randn(4, 4, generator=g), dim=-1)) for _ in range(3)]
    batches[0][0][1] = torch.tensor([1.0, 0, 0, 0]); batches[0][1][1] = torch.tensor([1.0, 0, 0, 0])
    def loss_fn(m, b):
        cosine = (m(b[0]) * b[1]).sum(-1).abs().clamp(max=1.0)
        return (2 * torch.acos(cosine)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", where="loss_fn", module="", phase="backward", op="aten.acos", first_bad_step=0, line="torch.acos(cosine)", loss_finite_at_first_bad_step=True))
