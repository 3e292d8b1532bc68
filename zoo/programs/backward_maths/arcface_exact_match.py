"""ArcFace: sine = sqrt(1 - cosine^2). A class centre was initialised from a sample's own embedding, so the cosine is exactly 1.
Threads: ronghuaiyang/arcface-pytorch#91.
True cause: gradient of sqrt at zero."""
import math, torch, torch.nn as nn

class ArcFace(nn.Module):
    def __init__(s): super().__init__(); s.centres = nn.Parameter(torch.eye(4))
    def forward(s, z, y, m=0.3, scale=8.0):
        cosine = z @ nn.functional.normalize(s.centres, dim=-1).t(); sine = torch.sqrt((1.0 - cosine ** 2).clamp(0, 1))
        target = cosine * math.cos(m) - sine * math.sin(m)
        one = nn.functional.one_hot(y, 4).float()
        return scale * (one * target + (1 - one) * cosine)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Linear(4, 4, bias=False); nn.init.eye_(s.emb.weight); s.margin = ArcFace()
    def forward(s, x, y): return s.margin(nn.functional.normalize(s.emb(x), dim=-1), y)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); x = torch.randn(4, 4, generator=g); x[2] = torch.tensor([0.0, 0.0, 2.0, 0.0])
    batches = [(x, torch.tensor([0, 1, 2, 3]))] * 3
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="margin", phase="backward", op="aten.div", also_op=["aten.sqrt"], first_bad_step=0, loss_finite_at_first_bad_step=True))
