"""An encoder under fp16 autocast that masks with finfo(float16).min, 'so that an empty row is uniform and never NaN'. The learned relative
bias has drifted to about -40 (softmax does not see a shift): -65504 - 40 rounds to -Inf in half. For partly padded rows this is
harmless; sample 1 of batch 2 is empty, its whole row becomes -Inf, and the softmax is NaN.
True cause: the mask plus the bias overflows in half. TRAP: the mask is 'safe', the bias is finite, partial padding was always there."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BiasedScores(nn.Module):
    def __init__(self, n=8):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * n - 1) * 0.1 - 40.0)
        self.register_buffer("index", torch.arange(n)[:, None] - torch.arange(n)[None] + n - 1)

    def forward(self, scores, keep):
        scores = scores + self.table[self.index].to(scores.dtype)
        mask = torch.zeros(keep.shape, dtype=scores.dtype).masked_fill(~keep, torch.finfo(torch.float16).min)
        return scores + mask[:, None, :]


class Attention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.bias = BiasedScores()

    def forward(self, x, keep):
        s = self.bias(self.q(x) @ self.k(x).transpose(1, 2) / 4, keep)
        return x + self.o(s.softmax(-1) @ self.v(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(25, 16)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(16, 25)

    def forward(self, ids, keep):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x, keep)
        return self.head(x)


def build():
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        keep = torch.arange(8)[None] < torch.tensor([[8], [0 if i == 2 else 6], [5]])
        batches.append((torch.randint(1, 25, (3, 8), generator=g), keep))

    def loss_fn(m, b):
        ids, keep = b
        per = F.cross_entropy(m(ids, keep).float().flatten(0, 1), ids.flatten(), reduction="none")
        return (per * keep.flatten()).sum() / keep.sum()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="mask_overflow", module="layers.0.bias", phase="forward", op="aten.add", first_bad_step=2, trap=True,
                           also=["softmax_fully_masked_row"], also_module=["layers.0"], also_op=["aten._softmax"]))
