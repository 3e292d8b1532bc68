"""CONTROL: some queries have every key masked, so the softmax really gives NaN rows; nan_to_num sets them to 0, and masked_fill stops their
gradient. Values and gradients stay finite: nothing reaches the loss, a gradient or a weight."""
import torch, torch.nn as nn

class Attn(nn.Module):
    def __init__(s): super().__init__(); s.qk = nn.Linear(8, 16); s.v = nn.Linear(8, 8)
    def forward(s, x, pad):
        q, k = s.qk(x).chunk(2, -1)
        w = torch.softmax((q @ k.transpose(1, 2)).masked_fill(pad[:, None], float("-inf")), -1)
        return torch.nan_to_num(w, nan=0.0) @ s.v(x)

def build():
    torch.manual_seed(0); model = nn.ModuleDict(dict(attn=Attn(), head=nn.Linear(8, 3))); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6): n = torch.tensor([4, i % 3, 2]); batches.append((torch.randn(3, 4, 8, generator=g), torch.arange(4)[None] >= n[:, None], torch.tensor([0, 1, 2])))
    def loss_fn(m, b): return nn.functional.cross_entropy(m["head"](m["attn"](b[0], b[1]).mean(1)), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
