"""A language model in pure float16 with a hand-written RMSNorm, x * rsqrt(mean(x^2) + 1e-8). Padding has the zero embedding
(padding_idx). In float16 1e-8 is 0: rsqrt(0) is Inf and 0 * Inf is NaN. Padding first comes at step 2.
True cause: the epsilon underflows in half; in float32 the same code is right. Optimizer: SGD, no eps there."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 30


class RmsNorm(nn.Module):
    def __init__(self, d, eps=1e-8):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Mixer(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.norm, self.up, self.down = RmsNorm(d), nn.Linear(d, 32), nn.Linear(32, d)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Lm(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=0)
        self.blocks = nn.ModuleList([Mixer(d), Mixer(d)])
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def build():
    torch.manual_seed(0)
    model = Lm().half()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        ids = torch.randint(1, VOCAB, (3, 8), generator=g)
        if i == 2:
            ids[1, 5:] = 0
        batches.append(ids)

    def loss_fn(m, ids):
        logits, target = m(ids).float()[:, :-1], ids[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="blocks.0.norm", phase="forward", op="aten.rsqrt", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also_op=["aten.mul"]))
