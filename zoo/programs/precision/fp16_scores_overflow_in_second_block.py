"""fp16 autocast: block 0 adds finfo.min masks (safe), block 1's unscaled q @ k^T exceeds 65504."""
import torch, torch.nn as nn, torch.nn.functional as F
class Attn(nn.Module):
    def __init__(s, mask, big, fix): super().__init__(); s.q = nn.Linear(16, 16); s.k = nn.Linear(16, 16); s.v = nn.Linear(16, 16); s.mask = mask; s.big = big; s.fix = fix
    def forward(s, x):
        q, k, v = s.q(x), s.k(x), s.v(x)
        if s.big and s.fix == "true":
            with torch.autocast("cpu", enabled=False): w = q.float() @ k.float().transpose(1, 2)
        else: w = q @ k.transpose(1, 2)
        if s.mask: w = w.masked_fill(torch.ones_like(w, dtype=torch.bool).triu(1), torch.finfo(w.dtype).min)
        return torch.softmax(w.float(), -1).to(v.dtype) @ v
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.blocks = nn.ModuleList([Attn(fix != "innocent", False, fix), Attn(False, True, fix)]); s.out = nn.Linear(16, 4)
    def forward(s, x):
        for b in s.blocks: x = x + b(x)
        return s.out(x)
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.blocks[1].q.bias.fill_(300.0); model.blocks[1].k.bias.fill_(300.0)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(2, 5, 16, generator=g), torch.randn(2, 5, 4, generator=g)) for _ in range(3)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]).float(), b[1]), steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="blocks.1", phase="forward", op="aten.bmm", first_bad_step=0,
                           loss_finite_at_first_bad_step=False, also=["bad_initialisation"], why="scores of about 1.4e6 do not fit fp16"))
