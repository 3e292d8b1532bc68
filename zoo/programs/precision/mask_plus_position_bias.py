"""The padding mask is finfo(fp16).min and a learned position bias of a few hundred (negative) is added to it: the sum is -Inf, and for a
sample that is padding only the softmax has a row of -Inf.
True cause: overflow of mask + bias in half precision; with the mask alone the row would be uniform and finite."""
import torch, torch.nn as nn

class BiasedAttention(nn.Module):
    def __init__(s): super().__init__(); s.qk = nn.Linear(8, 16); s.v = nn.Linear(8, 8); s.bias = nn.Parameter(torch.full((5, 5), -300.0))
    def forward(s, x, pad):
        q, k = s.qk(x).chunk(2, -1)
        mask = torch.zeros(x.shape[0], 1, 5, dtype=x.dtype).masked_fill(pad[:, None], torch.finfo(x.dtype).min)
        return torch.softmax((mask + s.bias) + q @ k.transpose(1, 2), -1) @ s.v(x)

def build():
    torch.manual_seed(0); model = nn.Sequential(); model.attn = BiasedAttention(); model.head = nn.Linear(8, 2); model = model.half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        n = torch.tensor([5, 0 if i == 2 else 4, 5])
        batches.append((torch.randn(3, 5, 8, generator=g).half(), torch.arange(5)[None] >= n[:, None], torch.tensor([0, 1, 1])))
    for b in batches[:2]: b[1][:] = False
    def loss_fn(m, b): return nn.functional.cross_entropy(m.head(m.attn(b[0], b[1]).mean(1)).float(), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="mask_overflow", module="attn", phase="forward", op="aten.add", first_bad_step=2))
