"""Some reward functions return None for some completions, stored as NaN; nansum over the functions removes them before the advantages. Healthy."""
import torch
import torch.nn as nn


def combine(table, weights):
    return torch.nansum(table * weights, dim=1)


def build():
    torch.manual_seed(6)
    pol = nn.Linear(5, 3)
    g = torch.Generator().manual_seed(7)
    bs = []
    for _ in range(5):
        t = torch.rand(8, 2, generator=g)
        t[torch.rand(8, generator=g) < 0.4, 1] = float("nan")
        bs.append(dict(x=torch.randn(8, 5, generator=g), a=torch.randint(0, 3, (8,), generator=g), table=t))

    def loss_fn(m, b):
        r = combine(b["table"], torch.tensor([1.0, 0.5])).view(2, 4)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
        logp = m(b["x"]).log_softmax(1).gather(1, b["a"][:, None])[:, 0]
        return -(adv * logp).mean()

    return dict(model=pol, optimizer=torch.optim.AdamW(pol.parameters(), lr=1e-3), batches=bs, steps=10, autocast_dtype=None, loss_fn=loss_fn,
                truth=dict(cause="benign", first_bad_step=None))
