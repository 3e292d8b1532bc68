"""CONTROL: PPO with illegal moves at -inf. Entropy p*log p is taken with the -inf replaced before the product; the ratio is exp of a small number. Finite throughout."""
import torch, torch.nn as nn

class AC(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(5, 16), nn.Tanh()); s.pi = nn.Linear(16, 6); s.v = nn.Linear(16, 1)
    def forward(s, o, legal):
        h = s.body(o); return s.pi(h).masked_fill(~legal, float("-inf")).log_softmax(-1), s.v(h).squeeze(-1)
def build():
    torch.manual_seed(0); model = AC(); opt = torch.optim.Adam(model.parameters(), lr=3e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        legal = torch.rand(12, 6, generator=g) < 0.5; a = torch.randint(0, 6, (12,), generator=g); legal[torch.arange(12), a] = True    # some states have one legal move
        batches.append((torch.randn(12, 5, generator=g), legal, a, torch.randn(12, generator=g)))
    def loss_fn(m, b):
        lp, v = m(b[0], b[1]); chosen = lp.gather(1, b[2][:, None]).squeeze(1)
        ratio = (chosen - chosen.detach()).exp(); ent = -(lp.exp() * lp.masked_fill(~b[1], 0.0)).sum(-1)
        return -torch.minimum(ratio * b[3], ratio.clamp(0.8, 1.2) * b[3]).mean() + 0.5 * (v - b[3]).pow(2).mean() - 0.01 * ent.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
