"""A transformer block that drops whole keys with its own generator, kept as an attribute. Sometimes every key is dropped.
True cause: softmax over a fully masked row."""
import torch, torch.nn as nn

class Attention(nn.Module):
    def __init__(s, d):
        super().__init__(); s.q = nn.Linear(d, d); s.k = nn.Linear(d, d); s.v = nn.Linear(d, d); s.noise = torch.Generator().manual_seed(11)
    def forward(s, x):
        scores = s.q(x) @ s.k(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        drop = torch.rand(x.shape[0], 1, x.shape[1], generator=s.noise) < 0.45
        return x + scores.masked_fill(drop, float("-inf")).softmax(-1) @ s.v(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 16); s.attn = Attention(16); s.norm = nn.LayerNorm(16); s.head = nn.Linear(16, 20)
    def forward(s, t): return s.head(s.norm(s.attn(s.emb(t))))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(2)
    batches = [torch.randint(0, 20, (3, 4), generator=g) for _ in range(14)]
    def loss_fn(m, t): return nn.functional.cross_entropy(m(t).flatten(0, 1), t.flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="attn", phase="forward", op="aten._softmax", first_bad_step=6,
                           never_said=["compiled", "replace the device", "transient"]))
