"""A DQN with RMSprop: the Q values chase their own targets with steps that are far too long, until the squares in the running average overflow.
After https://github.com/farizrahman4u/qlearning4k/issues/13 (NaN loss; lowering the learning rate to .001 fixes it).
True cause: the learning rate is too high."""
import torch
from torch import nn


class QNet(nn.Module):
    def __init__(self, obs=6, actions=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 64), nn.ELU(), *[k for _ in range(4) for k in (nn.Linear(64, 64), nn.ELU())])
        self.q = nn.Linear(64, actions)

    def forward(self, s):
        return self.q(self.body(s))


class Replay:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.s, self.s2 = torch.randn(n, 6, generator=g), torch.randn(n, 6, generator=g)
        self.a, self.r = torch.randint(0, 3, (n,), generator=g), torch.randn(n, generator=g)

    def sample(self, i, k=32):
        sl = slice(i * k, (i + 1) * k)
        return self.s[sl], self.a[sl], self.r[sl], self.s2[sl]


def build():
    torch.manual_seed(2)
    q = QNet()
    opt = torch.optim.RMSprop(q.parameters(), lr=2.0, alpha=0.95)
    memory = Replay(320, 3)

    def td_loss(net, batch, gamma=0.99):
        s, a, r, s2 = batch
        with torch.no_grad():
            y = r + gamma * net(s2).max(1).values
        qa = net(s).gather(1, a[:, None]).squeeze(1)
        return ((y - qa) ** 2).mean()

    return dict(model=q, optimizer=opt, batches=[memory.sample(i) for i in range(10)], loss_fn=td_loss, steps=20, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="optimizer", phase="optimizer", also_phase=("grad_clip", "backward"), op="aten.addcmul_", also_op=("aten.linalg_vector_norm", "aten._foreach_norm"),
                           first_bad_step=2, loss_finite_at_first_bad_step=True, grads_finite=True, line="lr=2.0"))
