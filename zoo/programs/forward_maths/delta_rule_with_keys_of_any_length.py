"""Linear attention with the delta rule: the memory is corrected by beta k k^T at every token. The keys are not normalised, so for long keys one correction overshoots
by more than it removes and the memory grows with every token; short sequences survive, the long one does not.
After https://github.com/fla-org/flash-linear-attention/issues/389 (the gated delta rule with a gate of 1 is numerically unstable; keys are normalised in the repro).
True cause: a recurrence whose factor is above one."""
import torch
from torch import nn


class DeltaMemory(nn.Module):
    def __init__(self, d=12, heads=2):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.beta = nn.Linear(d, heads)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        beta = torch.sigmoid(self.beta(x))
        memory = x.new_zeros(len(x), self.heads, k.shape[-1], v.shape[-1])
        out = []
        for t in range(x.shape[1]):
            kt, vt = k[:, t], v[:, t]
            read = torch.einsum("bhk,bhkv->bhv", kt, memory)
            memory = memory + torch.einsum("bhk,bhv->bhkv", beta[:, t, :, None] * kt, vt - read)
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory))
        return torch.stack(out, 1).flatten(2)


class DeltaLM(nn.Module):
    def __init__(self, vocab=15, d=12):
        super().__init__()
        self.emb, self.memory, self.head = nn.Embedding(vocab, d), DeltaMemory(d), nn.Linear(d, vocab)
        with torch.no_grad():
            self.memory.k.weight.mul_(4.0)

    def forward(self, ids):
        return self.head(torch.tanh(1e-3 * self.memory(self.emb(ids))))


def build():
    torch.manual_seed(0)
    model = DeltaLM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(2)
    lengths = [4, 5, 4, 120, 5]
    batches = [torch.randint(0, 15, (2, n + 1), generator=g) for n in lengths]

    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="memory", phase="forward", op="aten.bmm", also_op=("aten.mul", "aten.add", "aten.sum"), first_bad_step=3,
                           line="memory = memory + torch.einsum(", why="beta |k|^2 is well above 2, so every token multiplies the error of the memory"))
