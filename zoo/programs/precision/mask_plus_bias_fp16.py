"""fp16: finfo.min plus a negative position bias of -100 becomes -inf; a padded query row is wholly masked that way. The -inf mask of the other head is partial and fine."""
import torch, torch.nn as nn, torch.nn.functional as F
class Head(nn.Module):
    def __init__(s, kind, fix): super().__init__(); s.qk = nn.Linear(8, 16); s.kind = kind; s.fix = fix
    def forward(s, x, pad):
        q, k = s.qk(x).chunk(2, -1); w = (q @ k.transpose(1, 2)) * 0.3; T = x.shape[1]
        if s.kind == "causal": w = w + torch.full((T, T), float("-inf"), dtype=w.dtype).triu(1)
        else:
            fill = -1e4 if s.fix == "true" else torch.finfo(w.dtype).min
            bias = torch.full((T, T), -100.0, dtype=w.dtype)
            w = w + ((pad[:, :, None] | pad[:, None, :]).to(w.dtype) * fill + bias)
        return torch.softmax(w, -1).to(x.dtype) @ x
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.emb = nn.Linear(8, 8); s.h0 = Head("causal", fix) if fix != "innocent" else None; s.h1 = Head("pad", fix); s.out = nn.Linear(8, 2)
    def forward(s, x, pad): h = s.emb(x); h = s.h0(h, pad) if s.h0 is not None else h; return s.out(s.h1(h, pad))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        pad = torch.zeros(2, 5, dtype=torch.bool)
        if i >= 2: pad[1, 4] = True
        batches.append((torch.randn(2, 5, 8, generator=g), pad, torch.randn(2, 5, 2, generator=g)))
    def loss_fn(m, b): return ((m(b[0], b[1]).float() - b[2]) ** 2).masked_fill(b[1][..., None], 0).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="mask_overflow", module="h1", phase="forward", op="aten.add", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=["softmax_fully_masked_row"], why="-65504 - 100 = -inf in fp16, whole row, NaN softmax; masked out of the loss but not of the gradient"))
