"""A variance term in the manner of VICReg without its eps: relu(1 - sqrt(var)). One output of the projector is constant (its weights
were pruned to 0), so var is exactly 0.
True cause: singular gradient of sqrt at a variance of zero, in the loss function."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 5)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    def prune(o, *a):                                                             # a pruning callback runs after the second step
        o.count = getattr(o, "count", 0) + 1
        if o.count == 2:
            with torch.no_grad(): model[2].weight[3] = 0.0
    opt.register_step_post_hook(prune); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 7, generator=g) for _ in range(5)]
    def loss_fn(m, b):
        z = m(b); return torch.relu(1.0 - z.var(0).sqrt()).mean() + 0.1 * z.square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
