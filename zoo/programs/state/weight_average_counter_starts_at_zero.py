"""Stochastic weight averaging, avg += (w - avg) / n, starts at the third step; the counter n is raised after the update, so the first division
is by 0 and the average is Inf for ever. The averaged copy is used only for evaluation.
True cause: the averaged copy is poisoned; model, loss and gradients are finite."""
import torch, torch.nn as nn

class Averaged(nn.Module):
    def __init__(s, net):
        super().__init__(); s.register_buffer("n", torch.zeros(()))
        for k, p in net.named_parameters(): s.register_buffer(k.replace(".", "_"), p.detach().clone())
    @torch.no_grad()
    def update(s, net):
        for k, p in net.named_parameters(): avg = getattr(s, k.replace(".", "_")); avg.add_((p - avg) / s.n)
        s.n += 1

def build():
    torch.manual_seed(0); model = nn.Module(); model.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)); model.swa = Averaged(model.net)
    opt = torch.optim.SGD(model.net.parameters(), lr=0.1, momentum=0.9); seen = []
    def after(o, *a):
        seen.append(1)
        if len(seen) >= 3: model.swa.update(model.net)
    opt.register_step_post_hook(after); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m.net(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["swa.0_weight"]))
