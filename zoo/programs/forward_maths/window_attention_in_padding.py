"""Local attention, |i - j| <= 1, joined with a padding mask: a position deep inside the padding sees no valid key at all. The loss leaves the padding out.
True cause: a fully masked softmax row; it shows once a document is two tokens shorter than the longest (batch 2), and 0 * NaN in the second layer
carries it to the valid positions."""
import torch, torch.nn as nn

class LocalAttention(nn.Module):
    def __init__(s, d=8): super().__init__(); s.q, s.k, s.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
    def forward(s, x, valid):
        i = torch.arange(x.shape[1]); allowed = ((i[:, None] - i).abs() <= 1) & valid[:, None, :]
        score = torch.einsum("bid,bjd->bij", s.q(x), s.k(x)) / 8 ** 0.5
        return x + torch.where(allowed, score, float("-inf")).softmax(-1) @ s.v(x)
class Encoder(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(15, 8); s.layers = nn.ModuleList([LocalAttention(), LocalAttention()]); s.head = nn.Linear(8, 15)
    def forward(s, ids, valid):
        x = s.emb(ids)
        for layer in s.layers: x = layer(x, valid)
        return s.head(x)

def build():
    torch.manual_seed(0); model = Encoder(); opt = torch.optim.NAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 15, (2, 6), generator=g), torch.arange(6) < torch.tensor([[6], [n]])) for n in (6, 5, 4, 6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b)[b[1]], b[0][b[1]])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="layers.0", phase="forward", op="aten._softmax", first_bad_step=2))
