"""VQ-VAE that revives dead codes: every fourth step codes that were not used are overwritten, through .data, by rows drawn (with the module's
own generator) from a queue of recent features. Slots of the queue that were never filled are marked NaN, and the draw does not check.
True cause: the program itself wrote NaN into the codebook. TRAP: the NaN shows in the distances, the data and the rate are fine."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Codebook(nn.Module):
    def __init__(self, codes=12, d=4, every=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(codes, d) * 0.3)
        self.every, self.calls = every, 0
        self.gen = torch.Generator().manual_seed(5)
        self.queue = torch.full((64, d), float("nan"))
        self.used = torch.zeros(codes)

    def revive(self, z):
        self.queue = torch.cat([z.detach(), self.queue])[:64]
        dead = self.used == 0
        if self.calls % self.every == 0 and dead.any():
            rows = torch.randint(0, 64, (int(dead.sum()),), generator=self.gen)
            rows[0] = 63                                           # always try the oldest one
            self.weight.data[dead] = self.queue[rows]
            self.used.zero_()

    def forward(self, z):
        self.calls += 1
        self.revive(z)
        dist = (z[:, None] - self.weight[None]).pow(2).sum(-1)
        idx = dist.argmin(-1)
        self.used[idx] += 1
        q = self.weight[idx]
        return z + (q - z).detach(), F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())


class VqVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.codebook, self.dec = nn.Linear(8, 4), Codebook(), nn.Linear(4, 8)

    def forward(self, x):
        q, commit = self.codebook(self.enc(x))
        return self.dec(q), commit


def build():
    torch.manual_seed(0)
    model = VqVae()
    with torch.no_grad():
        model.codebook.weight[6:] += 100.0                        # half of the codes are far away: dead
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 8, generator=g) for _ in range(6)]

    def loss_fn(m, x):
        y, commit = m(x)
        return F.mse_loss(y, x) + commit

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="codebook", phase="forward", op="aten.index_put_", first_bad_step=3,
                           state="codebook.weight", trap=True, also_phase=["state"], also_op=[None, "aten.sub"]))
