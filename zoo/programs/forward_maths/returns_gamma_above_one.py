"""A2C with vectorised returns: gamma was typed 1.01 instead of 0.99; for the first long episode gamma ** t overflows.
True cause: a power of a number above one with a large exponent."""
import torch, torch.nn as nn

class ActorCritic(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh()); s.pi = nn.Linear(16, 3); s.v = nn.Linear(16, 1)
    def forward(s, o): h = s.body(o); return torch.distributions.Categorical(logits=s.pi(h)), s.v(h).squeeze(-1)

def returns(r, gamma):
    d = torch.tensor(gamma) ** torch.arange(len(r))
    return (r * d).flip(0).cumsum(0).flip(0) / d

def build():
    torch.manual_seed(0); model = ActorCritic(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        t = 12000 if i == 3 else 30
        batches.append(dict(obs=torch.randn(t, 4, generator=g), act=torch.randint(0, 3, (t,), generator=g), rew=torch.rand(t, generator=g)))
    def loss_fn(m, b):
        ret = returns(b["rew"], 1.01); dist, v = m(b["obs"]); adv = ret - v
        return -(dist.log_prob(b["act"]) * adv.detach()).mean() + adv.pow(2).mean() - 0.01 * dist.entropy().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.pow", first_bad_step=3))
