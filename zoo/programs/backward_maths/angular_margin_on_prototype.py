"""ArcFace: theta = acos(cos.clamp(-1, 1)) between feature and class weight. The class weights start as unit axes; a feature with one active channel lies on one.
True cause: acos at exactly 1; a clamp to 1 - 1e-6 keeps the gradient finite."""
import torch, torch.nn as nn

class ArcMargin(nn.Module):
    def __init__(s): super().__init__(); s.weight = nn.Parameter(torch.eye(5)); s.margin = 0.2
    def forward(s, f, y):
        cos = nn.functional.linear(nn.functional.normalize(f), nn.functional.normalize(s.weight)).clamp(-1.0, 1.0)
        theta = torch.acos(cos); return 8.0 * torch.cos(theta + s.margin * nn.functional.one_hot(y, 5))
class Face(nn.Module):
    def __init__(s): super().__init__(); s.feature = nn.Linear(5, 5, bias=False); nn.init.eye_(s.feature.weight); s.arc = ArcMargin()
    def forward(s, x, y): return s.arc(s.feature(x), y)

def build():
    torch.manual_seed(0); model = Face(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(6, 5, generator=g), torch.randint(0, 5, (6,), generator=g)) for _ in range(3)]
    batches[0][0][4] = torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0])
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="arc", phase="backward", op="aten.rsqrt", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
