"""Actor-critic: advantages are normalised with adv.std(); the last rollout fragment holds a single transition.
Real: many ("nan when the last minibatch has size 1"). True cause: unbiased std of one element."""
import torch, torch.nn as nn

class AC(nn.Module):
    def __init__(s): super().__init__(); s.pi = nn.Linear(4, 3); s.v = nn.Linear(4, 1)
    def forward(s, o): return s.pi(o), s.v(o).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = AC(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g), torch.randn(n, generator=g)) for n in (16, 16, 16, 16, 1, 16)]
    def loss_fn(m, b):
        z, v = m(b[0]); adv = b[2] - v.detach(); adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        return (nn.functional.cross_entropy(z, b[1], reduction="none") * adv).mean() + (v - b[2]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="loss", phase="forward", op="aten.std", first_bad_step=4))
