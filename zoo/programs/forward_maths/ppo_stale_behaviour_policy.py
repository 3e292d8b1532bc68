"""PPO: the probability ratio of a batch collected by a policy that was far away."""
import torch, torch.nn as nn, torch.nn.functional as F

class Policy(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(6, 16); s.pi = nn.Linear(16, 3); s.v = nn.Linear(16, 1)
    def forward(s, o): h = torch.tanh(s.body(o)); return s.pi(h), s.v(h).squeeze(-1)
def build():
    torch.manual_seed(0); model = Policy(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(obs=torch.randn(10, 6, generator=g), act=torch.randint(0, 3, (10,), generator=g), old=torch.full((10,), -1.1), adv=torch.randn(10, generator=g), ret=torch.randn(10, generator=g)) for _ in range(4)]
    batches[3]["old"][4] = -95.0; batches[3]["adv"][4] = -1.0
    def loss_fn(m, b):
        logits, value = m(b["obs"])
        logp = F.log_softmax(logits, -1).gather(1, b["act"][:, None]).squeeze(1)
        ratio = (logp - b["old"]).exp()
        surrogate = torch.min(ratio * b["adv"], ratio.clamp(0.8, 1.2) * b["adv"])
        return -surrogate.mean() + 0.5 * F.mse_loss(value, b["ret"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", where="loss_fn", module="", phase="forward", op="aten.exp", first_bad_step=3, line="ratio = (logp"))
