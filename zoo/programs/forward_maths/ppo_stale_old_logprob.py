"""PPO with a stale replay entry: old log-prob of one action is -150, so ratio = exp(new - old) is Inf; min() with the clipped
ratio hides it (the loss is finite), and ExpBackward turns 0 * Inf into NaN. True cause: exp of a large finite value."""
import torch, torch.nn as nn
import torch.nn.functional as F

class ActorCritic(nn.Module):
    def __init__(self, obs=6, act=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, act), nn.Linear(32, 1)
    def forward(self, o):
        h = self.body(o)
        return F.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)

def build():
    torch.manual_seed(0)
    model = ActorCritic(); opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(5)
    batches = []
    for i in range(6):
        b = dict(obs=torch.randn(16, 6, generator=g), act=torch.randint(0, 4, (16,), generator=g),
                 old=torch.full((16,), -1.386), adv=torch.randn(16, generator=g).abs() + 0.1, ret=torch.randn(16, generator=g))
        if i == 3: b["old"][5] = -150.0
        batches.append(b)
    def loss_fn(m, b):
        lp, v = m(b["obs"])
        ratio = torch.exp(lp.gather(1, b["act"][:, None]).squeeze(1) - b["old"])
        surr = torch.min(ratio * b["adv"], ratio.clamp(0.8, 1.2) * b["adv"])
        return -surr.mean() + 0.5 * F.mse_loss(v, b["ret"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", also_phase=["backward"], also_op=["aten.mul"], op="aten.exp", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, also=["where_unselected_branch", "input_out_of_scale"],
                           why="exp(148) overflows fp32; min() hides the Inf in the loss but its backward is 0 * Inf."))
