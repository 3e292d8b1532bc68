"""Density network (one mixture component so far, stable logsumexp) under bf16 autocast. Before step 3 a 'resume' restores the optimizer's state dict, whose lr was saved in the wrong unit (1e8).
The step itself is finite; the next ones explode. bf16 is innocent, a wild input of 1e3 in the same batch (tanh) is innocent."""
import copy, torch, torch.nn as nn

class MDN(nn.Module):
    def __init__(s, k=1):
        super().__init__(); s.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh()); s.head = nn.Linear(16, 3 * k)
    def forward(s, x):
        a, mu, ls = s.head(s.body(x)).float().chunk(3, -1); return a.log_softmax(-1), mu, 0.3 * torch.tanh(ls)
class NLL(nn.Module):
    def forward(s, lp, mu, ls, y): return -torch.logsumexp(lp - 0.5 * ((y[:, None] - mu) * torch.exp(-ls)).pow(2) - ls, -1).mean()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.mdn = MDN(); s.nll = NLL()
    def forward(s, x, y): return s.nll(*s.mdn(x), y)

def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, generator=g) + 2, k) for k in range(9)]
    if fix != "innocent": batches[3][0][1, 2] = 1e3
    saved = copy.deepcopy(opt.state_dict()); saved["param_groups"][0]["lr"] = 1e-2 if fix == "true" else 1e8
    def loss_fn(m, b):
        if b[2] == 3: opt.load_state_dict(copy.deepcopy(saved))
        return m(b[0], b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None if fix == "innocent" else torch.bfloat16,
                truth=dict(cause="resume_lr_jump", module="nll", phase="forward", op="aten.pow", first_bad_step=6, loss_finite_at_first_bad_step=False, also=["lr_too_high"],
                           why="lr 1e-2 -> 1e8 at the resume of step 3; finite with the old rate, also in bf16"))
