"""Principal axes by eigh of s*I + h h^T. A sample without texture (h = 0 exactly, bias-free layer) has a covariance s*I: all eigenvalues equal, 1/(li - lj) in the
backward of the eigenVECTORS is 1/0. Forward finite. Blank samples are legal data: a jitter on the diagonal of different size per axis clears it."""
import torch, torch.nn as nn

class Axes(nn.Module):
    def forward(s, h, v):
        C = v[:, None, None] * torch.eye(3) + h[:, :, None] * h[:, None, :]
        lam, U = torch.linalg.eigh(C)
        return torch.cat([lam, (U * torch.arange(9.).reshape(3, 3)).flatten(1)], -1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(5, 3, bias=False); s.v = nn.Parameter(torch.tensor(1.0)); s.axes = Axes(); s.head = nn.Linear(12, 1)
    def forward(s, x): return s.head(s.axes(s.f(x) * torch.tensor([1.0, 2.0, 3.0]), s.v.expand(x.shape[0])))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-6); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(1, 5, generator=g), torch.randn(1, 1, generator=g)) for _ in range(5)]
    # rank-one plus s*I has a double eigenvalue too: healthy batches therefore pass through a loss on the values only (flag False)
    batches = [(x, y, i == 3) for i, (x, y) in enumerate(batches)]; batches[3][0].zero_()
    def loss_fn(m, b):
        h = m.f(b[0]) * torch.tensor([1.0, 2.0, 3.0])
        if b[2]: return nn.functional.mse_loss(m(b[0]), b[1])
        return nn.functional.mse_loss(m.head.weight[:, :3] @ h.t(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="axes", phase="backward", op="aten._linalg_eigh", also_op=["aten.linalg_eigh", "aten.div", "aten.div_"], first_bad_step=3, loss_finite_at_first_bad_step=True,
                           **{"not": ["division_by_zero", "bad_input_data", "singular_gradient_at_zero", "where_unselected_branch", "lr_too_high"]}))
