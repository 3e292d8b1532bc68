"""fp16 autocast with a hand-made static loss scale of 2**24, unscaled in a hook before the step: the gradient of the last layer does not fit into float16.
True cause: the loss scale; with scale 1 all gradients are finite."""
import torch, torch.nn as nn

SCALE = 2.0 ** 24

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    def unscale(o, *a):
        for grp in o.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.div_(SCALE)
    opt.register_step_pre_hook(unscale)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 8, generator=g), torch.full((4, 1), 2.0)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]).float(), b[1]) * SCALE
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", also_module=["4"], phase="backward", op="aten._to_copy", also_op=["aten.mm", "aten.to"], first_bad_step=0, loss_finite_at_first_bad_step=True))
