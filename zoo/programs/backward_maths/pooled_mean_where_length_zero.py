"""Mean pooling with length 0: the NaN of 0/0 is erased by torch.where in forward and comes back in backward."""
import torch, torch.nn as nn, torch.nn.functional as F
class Pool(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, h, n):
        m = torch.arange(h.shape[1])[None] < n[:, None]; tot = (h * m[..., None]).sum(1)
        den = n[:, None].float()
        if s.fix == "true": den = den.clamp_min(1)
        return torch.where(n[:, None] > 0, tot / den, torch.zeros_like(tot))
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.e = nn.Embedding(20, 8); s.pool = Pool(fix); s.out = nn.Linear(8, 3); s.fix = fix
    def forward(s, t, n):
        y = s.out(s.pool(s.e(t), n))
        if s.fix != "innocent": y = y - torch.log(torch.softmax(y, -1).sum(-1, keepdim=True).clamp_min(1e-12))
        return y
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        n = torch.randint(1, 6, (8,), generator=g)
        if i == 2: n[5] = 0
        batches.append((torch.randint(0, 20, (8, 6), generator=g), n, torch.randint(0, 3, (8,), generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="pool", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=["division_by_zero"], why="0/0 in the unselected branch; gradient 0/0 in DivBackward"))
