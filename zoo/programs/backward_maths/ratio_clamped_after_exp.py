"""PPO: exp of a log-ratio overflows and is clamped to 1.2. The loss is finite, the backward of exp multiplies 0 by Inf.
True cause: the branch that clamp threw away."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 3, (8,), generator=g), -torch.rand(8, generator=g), torch.randn(8, generator=g)) for _ in range(5)]
    batches[3][2][4] = -120.0
    def loss_fn(m, b):
        s, a, old, adv = b
        logp = m(s).log_softmax(-1).gather(1, a[:, None]).squeeze(1)
        ratio = torch.exp(logp - old).clamp(max=1.2)
        return -(ratio * adv).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=["exp_overflow"], module="loss", phase="backward", op="aten.mul", first_bad_step=3))
