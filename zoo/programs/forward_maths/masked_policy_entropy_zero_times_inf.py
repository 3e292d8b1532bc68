"""Invalid-action masking with -inf and a hand-written entropy sum(p * log p): 0 * -inf = NaN for every masked action.
Early levels of the curriculum have no invalid actions. True cause: zero times (mask-made) Inf."""
import torch, torch.nn as nn

class Entropy(nn.Module):
    def forward(s, logp): return -(logp.exp() * logp).sum(-1)
class Agent(nn.Module):
    def __init__(s): super().__init__(); s.pi = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)); s.entropy = Entropy()
    def forward(s, o, valid): lp = torch.log_softmax(s.pi(o).masked_fill(~valid, float("-inf")), -1); return lp, s.entropy(lp)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Agent(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        valid = torch.ones(10, 5, dtype=torch.bool)
        if i >= 4: valid[::3, 2:] = False
        batches.append((torch.randn(10, 6, generator=g), valid, torch.randint(0, 2, (10,), generator=g), torch.randn(10, generator=g)))
    def loss_fn(m, b):
        lp, ent = m(b[0], b[1]); return -(lp.gather(1, b[2][:, None]).squeeze(1) * b[3]).mean() - 0.01 * ent.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="entropy", phase="forward", op="aten.mul", first_bad_step=4))
