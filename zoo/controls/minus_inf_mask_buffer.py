"""CONTROL: a causal mask of -inf is registered as a buffer and added to the scores; the padding is masked by masked_fill. Every row keeps a key."""
import torch, torch.nn as nn

class Causal(nn.Module):
    def __init__(s, d, T):
        super().__init__(); s.qkv = nn.Linear(d, 3 * d); s.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))
    def forward(s, x, pad):
        q, k, v = s.qkv(x).chunk(3, -1)
        w = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5 + s.mask
        return torch.softmax(w.masked_fill(pad[:, None], float("-inf")), -1) @ v
class Net(nn.Module):
    def __init__(s): super().__init__(); s.attn = Causal(8, 6); s.head = nn.Linear(8, 8)
    def forward(s, x, pad): return s.head(x + s.attn(x, pad))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for _ in range(8): n = torch.randint(1, 7, (3,), generator=g); batches.append((torch.randn(3, 6, 8, generator=g), torch.arange(6)[None] >= n[:, None]))
    def loss_fn(m, b): return nn.functional.mse_loss(m(*b), b[0].roll(1, 1))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
