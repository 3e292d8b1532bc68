"""Decorrelation with ZCA whitening through eigh: the projection starts as the identity and the first batch has a covariance of exactly the identity.
True cause: the gradient of eigenvectors divides by differences of equal eigenvalues."""
import torch, torch.nn as nn

class Whiten(nn.Module):
    def forward(s, x):
        cov = x.t() @ x / x.shape[0]; val, vec = torch.linalg.eigh(cov)
        return x @ vec @ torch.diag(val.rsqrt()) @ vec.t()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.proj = nn.Linear(4, 4, bias=False); nn.init.eye_(s.proj.weight); s.white = Whiten(); s.head = nn.Linear(4, 2)
    def forward(s, x): return s.head(s.white(s.proj(x)))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    e = torch.eye(4); x = torch.cat([e, -e]) * 2.0
    batches = [(x, torch.tensor([0, 1, 0, 1, 1, 0, 1, 1]))] * 2
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="white", phase="backward", op="aten.div_", also_op=["aten.div", "aten.reciprocal", "aten.linalg_eigh", "aten._linalg_eigh"], first_bad_step=0))
