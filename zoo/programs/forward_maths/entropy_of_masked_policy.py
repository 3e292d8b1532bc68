"""An entropy bonus, -sum(p * log p), on logits of which some are masked by -inf: there p = 0 and log p = -Inf, and 0 * -Inf is NaN.
The batches before have no illegal action.
True cause: zero times infinity; the mask itself, and the softmax, are in order."""
import torch, torch.nn as nn

class Entropy(nn.Module):
    def forward(s, logits): logp = logits.log_softmax(-1); return -(logp.exp() * logp).sum(-1)
class Policy(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)); s.entropy = Entropy()
    def forward(s, x, legal): logits = s.net(x).masked_fill(~legal, float("-inf")); return logits, s.entropy(logits)

def build():
    torch.manual_seed(0); model = Policy(); opt = torch.optim.SGD(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        legal = torch.ones(6, 5, dtype=torch.bool)
        if i == 3: legal[1:4, 2] = False
        batches.append((torch.randn(6, 6, generator=g), legal, torch.zeros(6, dtype=torch.long)))
    def loss_fn(m, b):
        logits, h = m(b[0], b[1]); return nn.functional.cross_entropy(logits, b[2]) - 0.01 * h.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="entropy", phase="forward", op="aten.mul", first_bad_step=3))
