"""Online hard example mining: the mean of the losses above a limit, of which there is none in one batch."""
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(6, 2)
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.net.weight.zero_(); model.net.bias.copy_(torch.tensor([2.0, -2.0]))
    batches = [(torch.randn(6, 6, generator=g), torch.tensor([0, 1, 0, 1, 0, 0])) for _ in range(3)]; batches[2] = (batches[2][0] * 0, torch.zeros(6, dtype=torch.long))
    def loss_fn(m, b):
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        hard = each[each > 0.5]
        return hard.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="empty_reduction", where="loss_fn", module="", phase="forward", op="aten.mean", first_bad_step=2, line="return hard.mean()"))
