"""A mixture of experts balances its load by the mean gate of the tokens routed to each expert; one expert gets no token: 0/0.
True cause: mean over nothing."""
import torch, torch.nn as nn

class MoE(nn.Module):
    def __init__(s): super().__init__(); s.r = nn.Linear(6, 3); s.e = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
    def forward(s, x):
        p = s.r(x).softmax(-1); top = p.argmax(-1); y = torch.zeros_like(x); balance = 0.0
        for k, e in enumerate(s.e):
            sel = (top == k).float(); y = y + sel[:, None] * p[:, k:k + 1] * e(x)
            balance = balance + ((p[:, k] * sel).sum() / sel.sum()).square()
        return y, balance
def build():
    torch.manual_seed(0); model = MoE(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(40, 6, generator=g) for _ in range(5)]; batches[3] = batches[3][:1].expand(8, 6).clone()
    def loss_fn(m, x): y, b = m(x); return (y - x).square().mean() + 0.01 * b
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=["division_by_zero"], module="loss", phase="forward", op="aten.div", first_bad_step=3))
