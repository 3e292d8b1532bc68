"""Actor-critic for a board game with illegal-action masking; a terminal position slipped into the buffer, and it has no legal move.
Its weight in the loss is 0, but 0 * NaN is NaN.
True cause: log_softmax over a row in which every action is masked. The -inf mask itself is meant."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Policy(nn.Module):
    def __init__(s, d, a): super().__init__(); s.net = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, a))
    def forward(s, h, legal): return torch.log_softmax(s.net(h).masked_fill(~legal, -torch.inf), dim=-1)
class Agent(nn.Module):
    def __init__(s): super().__init__(); s.trunk = nn.Linear(18, 24); s.policy = Policy(24, 9); s.value = nn.Linear(24, 1)
    def forward(s, x, legal): h = torch.relu(s.trunk(x)); return s.policy(h, legal), s.value(h).squeeze(-1)

def build():
    torch.manual_seed(0); model = Agent(); opt = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(8); batches = []
    for i in range(9):
        legal = torch.rand(6, 9, generator=g) > 0.6; legal[:, 4] = True; done = torch.zeros(6)
        if i == 6: legal[3] = False; done[3] = 1.0
        act = torch.multinomial((legal | ~legal.any(1, True)).float(), 1, generator=g)
        batches.append((torch.randn(6, 18, generator=g), legal, act, torch.randn(6, generator=g), done))
    def loss_fn(m, b):
        x, legal, act, ret, done = b; logp, v = m(x, legal); live = 1 - done
        pg = -(logp.gather(1, act).squeeze(1) * (ret - v.detach()) * live).mean()
        return pg + 0.5 * ((v - ret) ** 2 * live).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="policy", phase="forward", op="aten._log_softmax", first_bad_step=6, grads_finite=True))
