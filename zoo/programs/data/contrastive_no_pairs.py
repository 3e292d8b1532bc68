"""Supervised metric learning: mean similarity over the positive pairs of a batch; a batch in which all identities differ has none.
True cause: mean over an empty selection. The gradients through the empty selection are zero, so the weights survive."""
import torch, torch.nn as nn

class Embed(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 8))
    def forward(s, x): return nn.functional.normalize(s.net(x), dim=-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Embed(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        ids = torch.randint(0, 4, (8,), generator=g)
        if i == 5: ids = torch.arange(8)
        batches.append((torch.randn(8, 20, generator=g), ids))
    def loss_fn(m, b):
        z = m(b[0]); sim = z @ z.T; same = b[1][:, None] == b[1][None]; eye = torch.eye(len(z), dtype=torch.bool)
        pull = (1 - sim)[same & ~eye].mean(); push = torch.relu(sim - 0.2)[~same].mean()
        return pull + push
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.mean", first_bad_step=5, grads_finite=True))
