"""Home-made loss scaling: the scale is multiplied by 256 every step and nobody checks for overflow; gradients are unscaled in a step hook. In step 2 the scaled
gradient (0.25 * 2**20) does not fit fp16 where `.float()` casts it back. With scale 1 the step is finite; activations are below 2. The printed loss grows only by the scale."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).half(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.no_grad(): model[2].weight.mul_(0.1); model[2].bias.zero_()
    g = torch.Generator().manual_seed(1); scaler = dict(scale=16.0)
    batches = [((torch.randn(8, 4, generator=g) * 0.5).half(), torch.ones(8, 1)) for _ in range(5)]
    def unscale(o, *a):
        for grp in o.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.copy_((p.grad.float() / scaler["scale"]).half())
        scaler["scale"] *= 256.0
    opt.register_step_pre_hook(unscale)
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]).float(), b[1]) * scaler["scale"]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="loss_scale_misuse", module="loss", where="loss_fn", phase="backward", op="aten._to_copy", first_bad_step=2, loss_finite_at_first_bad_step=True,
                           **{"not": ["lr_too_high", "exploding_gradient", "fp16_forward_overflow", "fp16_loss_overflow", "input_out_of_scale", "bad_initialisation"]}))
