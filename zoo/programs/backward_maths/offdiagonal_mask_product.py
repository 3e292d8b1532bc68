"""A repulsion term, sum(sqrt(d2) * (1 - eye)): the diagonal of the distances is exactly 0 and is multiplied away, in the forward. In the backward it is 0 * Inf.
True cause: the derivative of elements that a mask product leaves out."""
import torch, torch.nn as nn

class Repel(nn.Module):
    def forward(s, x):
        d2 = (x[:, None] - x[None]).square().sum(-1); off = 1.0 - torch.eye(x.shape[0])
        return (torch.sqrt(d2) * off).sum() / off.sum()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.embed = nn.Linear(4, 3); s.repel = Repel()
    def forward(s, x): z = s.embed(x); return z, s.repel(z)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.NAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), torch.randn(5, 3, generator=g), i >= 2) for i in range(5)]   # the term starts at step 2
    def loss_fn(m, b): z, spread = m(b[0]); return nn.functional.mse_loss(z, b[1]) - (0.1 * spread if b[2] else 0.0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="repel", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
