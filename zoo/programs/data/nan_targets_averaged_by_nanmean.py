"""Multi-task targets with missing values (NaN), averaged with nanmean: the loss is finite, the gradient is not."""
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(4, 3)
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), torch.randn(5, 3, generator=g)) for _ in range(3)]; batches[1][1][2, 1] = float("nan")
    def loss_fn(m, b):
        error = (m(b[0]) - b[1]) ** 2
        return torch.nanmean(error)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="bad_input_data", also=["where_unselected_branch"], module="data", phase="data", op=None, first_bad_step=1,
                           why="NaN marks a missing target, and nanmean leaves it out after the subtraction: 0 * NaN in the backward pass", loss_finite_at_first_bad_step=True))
