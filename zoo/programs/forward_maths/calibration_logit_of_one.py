"""Temperature scaling of an ensemble: torch.logit of averaged probabilities; all members agree on exactly 1.0 for one sample.
True cause: logit of 1 is a division by zero or log of zero: the probability is exactly at the edge."""
import torch, torch.nn as nn

class Calibrate(nn.Module):
    def __init__(s): super().__init__(); s.scale = nn.Parameter(torch.ones(())); s.shift = nn.Parameter(torch.zeros(()))
    def forward(s, p): return s.scale * torch.logit(p) + s.shift

def build():
    torch.manual_seed(0); model = Calibrate(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        p = torch.rand(3, 6, generator=g) * 0.8 + 0.1
        if i == 3: p[:, 2] = 1.0
        batches.append((p.mean(0), torch.randint(0, 2, (6,), generator=g).float()))
    batches[3][1][2] = 0.0
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=["division_by_zero"], module="loss", phase="forward", op="aten.logit", first_bad_step=3))
