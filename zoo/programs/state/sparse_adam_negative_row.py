"""Resume with SparseAdam: the restored exp_avg_sq has a negative row (23). Rows are only touched when their id occurs: the first time is
step 3, when also the rate doubles (innocent)."""
import copy, torch, torch.nn as nn

class Bag(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(30, 6, sparse=True); s.register_buffer("w", torch.linspace(-1, 1, 6))
    def forward(s, i): return (s.emb(i) * s.w).sum(-1)

def build(fix=None):
    torch.manual_seed(0); model = Bag(); opt = torch.optim.SparseAdam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    mk = lambda k: [torch.randint(0, 20, (12,), generator=g), torch.randn(12, generator=g), k]
    def loss_fn(m, b):
        if b[2] == 3 and fix != "innocent": opt.param_groups[0]["lr"] = 2e-2
        return nn.functional.mse_loss(m(b[0]), b[1])
    opt.zero_grad(); loss_fn(model, mk(-1)).backward(); opt.step()             # before the crash
    sd = copy.deepcopy(opt.state_dict())
    if fix != "true": sd["state"][0]["exp_avg_sq"][23] = -0.5
    opt.load_state_dict(sd)
    batches = [mk(k) for k in range(6)]; batches[3][0][7] = 23
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt_", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           param="emb.weight", why="negative second moment of row 23, used only when the id occurs; weights and gradients finite"))
