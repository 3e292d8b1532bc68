"""The entropy of a policy with illegal actions at -inf, by hand in the loss."""
import torch, torch.nn as nn, torch.nn.functional as F

class Policy(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))
    def forward(s, o, legal): return s.net(o).masked_fill(~legal, float("-inf"))
def entropy_of(logits):
    logp = F.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1)
def build():
    torch.manual_seed(0); model = Policy(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.ones(6, 4, dtype=torch.bool), torch.zeros(6, dtype=torch.long), torch.randn(6, generator=g)) for _ in range(4)]; batches[2][1][1, 3] = False
    def loss_fn(m, b):
        logits = m(b[0], b[1]); logp = F.log_softmax(logits, -1).gather(1, b[2][:, None]).squeeze(1)
        return -(logp * b[3]).mean() - 0.01 * entropy_of(logits).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", where="loss_fn", module="", phase="forward", op="aten.mul", first_bad_step=2, line="-(logp.exp() * logp).sum(-1)"))
