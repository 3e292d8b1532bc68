"""PPO: the last minibatch holds one transition, and the advantages are standardised by the unbiased deviation.
True cause: deviation of one element."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(n, 5, generator=g), torch.randint(0, 3, (n,), generator=g), torch.randn(n, generator=g)) for n in (8, 8, 8, 1)]
    def loss_fn(m, b):
        s, a, adv = b; adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        return -(m(s).log_softmax(-1).gather(1, a[:, None]).squeeze(1) * adv).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="loss", phase="forward", op="aten.std", first_bad_step=3))
