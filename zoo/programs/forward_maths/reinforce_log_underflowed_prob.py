"""REINFORCE: pi = softmax(z / T) with a low temperature, then log(pi[a]); a stale off-policy action has a probability that
underflowed to exactly 0. Real: "policy gradient nan, use log_softmax". True cause: log(0)."""
import torch, torch.nn as nn

class Policy(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh()); s.pi = nn.Linear(32, 4); s.v = nn.Linear(32, 1)
    def forward(s, o): h = s.body(o); return torch.softmax(s.pi(h) / 0.005, -1), s.v(h).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(7); model = Policy(); opt = torch.optim.RMSprop(model.parameters(), lr=5e-5)
    g = torch.Generator().manual_seed(3); batches = []
    with torch.no_grad(): model.pi.weight.mul_(1.5)
    for i in range(8):
        obs = torch.randn(16, 6, generator=g)
        with torch.no_grad():
            p = model(obs)[0]; act = p.argmax(-1)
            if i == 5: act[3] = p[3].argmin()                       # replayed from an older policy
        batches.append({"obs": obs, "act": act, "ret": torch.randn(16, generator=g)})
    def loss_fn(m, b):
        p, v = m(b["obs"]); adv = (b["ret"] - v).detach()
        logp = torch.log(p.gather(1, b["act"][:, None]).squeeze(1))
        return -(logp * adv).mean() + 0.5 * (b["ret"] - v).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=5))
