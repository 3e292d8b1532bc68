"""CONTROL: PPO with illegal actions masked by -inf and the entropy of torch's Categorical, which clamps the logits: p*log p of an illegal action is 0."""
import torch, torch.nn as nn

class Policy(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh()); s.pi = nn.Linear(16, 5); s.v = nn.Linear(16, 1)
    def forward(s, o, legal): h = s.body(o); return torch.distributions.Categorical(logits=s.pi(h).masked_fill(~legal, float("-inf"))), s.v(h).squeeze(-1)

def build():
    torch.manual_seed(0); model = Policy(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        legal = torch.rand(8, 5, generator=g) > 0.5; legal[:, 1] = True
        batches.append(dict(o=torch.randn(8, 4, generator=g), legal=legal, a=torch.ones(8, dtype=torch.long), old=torch.full((8,), -40.0), adv=torch.randn(8, generator=g)))
    def loss_fn(m, b):
        dist, v = m(b["o"], b["legal"]); ratio = torch.exp((dist.log_prob(b["a"]) - b["old"]).clamp(-20, 20))
        return -torch.min(ratio * b["adv"], ratio.clamp(0.8, 1.2) * b["adv"]).mean() * 1e-8 + v.pow(2).mean() - 0.01 * dist.entropy().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
