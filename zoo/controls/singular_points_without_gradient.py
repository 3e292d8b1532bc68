"""CONTROL: sqrt(0), acos(1), log(0) and the std of one element, all under no_grad for a table of statistics; the loss reads only nan_to_num of it, as a constant weight."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.randn(6, 1, generator=g)) for _ in range(8)]
    def loss_fn(m, b):
        p = m(b[0])
        with torch.no_grad():
            z = torch.zeros(3); s = torch.stack([torch.sqrt(z).sum(), torch.acos(z + 1).sum(), torch.log(z).sum(), p[:1].std(), z.sum() / z.sum()])
            w = torch.nan_to_num(s, nan=0.0, neginf=0.0).sum() + 1.0
        return w * ((p - b[1]) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
