"""CONTROL: F.scaled_dot_product_attention with a boolean mask one of whose rows allows no key: PyTorch's safe softmax gives 0 for such a row, forward and
backward are finite. (A hand-written softmax over the same mask would be NaN.)"""
import torch, torch.nn as nn

class Attn(nn.Module):
    def __init__(s): super().__init__(); s.qkv = nn.Linear(8, 24); s.out = nn.Linear(8, 8)
    def forward(s, x, allowed):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
        return s.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed).transpose(1, 2).flatten(2))

def build():
    torch.manual_seed(0); model = nn.Sequential(); model.attn = Attn(); opt = torch.optim.NAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 5, 8, generator=g), torch.rand(2, 1, 5, 5, generator=g) > 0.4) for _ in range(8)]
    for _, allowed in batches[2:]: allowed[1, 0, 3] = False
    def loss_fn(m, b): return nn.functional.mse_loss(m.attn(*b), b[0])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
