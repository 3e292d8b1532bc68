"""Point-cloud alignment by principal axes: eigh of the weighted scatter matrix. A cube has three equal eigenvalues, so the eigenvector
gradient divides by 0. True cause: degenerate spectrum in the backward of eigh."""
import itertools, torch, torch.nn as nn

class PCAFrame(nn.Module):
    def forward(s, pts): c = pts.transpose(1, 2) @ pts; return torch.linalg.eigh(c)[1]
class Aligner(nn.Module):
    def __init__(s): super().__init__(); s.scale = nn.Parameter(torch.tensor(1.0)); s.frame = PCAFrame(); s.head = nn.Linear(9, 4)
    def forward(s, pts): return s.head(s.frame(pts * s.scale).flatten(1).abs())

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Aligner(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1); cube = torch.tensor(list(itertools.product([-1., 1.], repeat=3)))
    batches = [(torch.randn(3, 8, 3, generator=g), torch.randint(0, 4, (3,), generator=g)) for _ in range(6)]
    batches[3][0][1] = cube
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="frame", phase="backward", op="aten.div_", first_bad_step=3, loss_finite_at_first_bad_step=True, op_alternatives=["aten.div"]))
