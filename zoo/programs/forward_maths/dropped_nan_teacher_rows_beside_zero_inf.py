"""The teacher's softmax has fully masked rows (padding tokens) in every batch: NaN under no_grad, taken out by an index. Innocent.
Guilty from step 2: the student's logits get -inf for forbidden classes, and the soft target is 0 there: 0 * -inf."""
import torch, torch.nn as nn

class Teacher(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(6, 5); s.softmax = nn.Softmax(-1)
    def forward(s, x, pad, forbid):
        l = s.lin(x).masked_fill(forbid[None, None], float("-inf"))
        return s.softmax(l.masked_fill(pad[..., None], float("-inf")))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.teacher = Teacher().requires_grad_(False); s.student = nn.Linear(6, 5)
    def forward(s, x, pad, forbid):
        with torch.no_grad(): p = s.teacher(x, pad, forbid)
        keep = ~pad
        return p[keep], s.student(x)[keep]

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        n = torch.tensor([4, 2, 3]); pad = torch.arange(4)[None] >= n[:, None]; forbid = torch.zeros(5, dtype=torch.bool)
        if i == 2: forbid[3] = True
        batches.append(dict(x=torch.randn(3, 4, 6, generator=g), pad=pad, forbid=forbid))
    def loss_fn(m, b):
        p, s = m(b["x"], b["pad"], b["forbid"])
        logq = torch.log_softmax(s.masked_fill(b["forbid"], float("-inf")), -1)
        return -(p * logq).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", where="loss_fn", phase="forward", op="aten.mul", first_bad_step=2, grads_finite=True,
                           innocent_module="teacher.softmax", **{"not": ["softmax_fully_masked_row", "bad_input_data", "log_of_zero"]}))
