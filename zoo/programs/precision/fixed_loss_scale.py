"""Float16 weights with a fixed loss scale of 2^20 and no check: the scaled gradient does not fit into float16, and the infinite one is divided and applied.
After https://github.com/milesial/Pytorch-UNet/issues/468 (clipping and unscaling around a scaler).
True cause: a loss scale that is too large and never adapted."""
import torch
import torch.nn as nn

SCALE = 2.0 ** 20


def build():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)

    def unscale(optimizer, *_):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(SCALE)

    opt.register_step_pre_hook(unscale)
    g = torch.Generator().manual_seed(2)
    data = []
    for k in (1.0, 1.0, 12.0, 1.0):
        x = torch.randn(8, 6, generator=g)
        data.append((x.half(), x, k))

    def loss_fn(m, b):
        x, full, k = b
        with torch.no_grad():
            y = m(x) + 0.02 * k * full[:, :1].half()          # targets close to the prediction: tiny gradients, hence the scale
        loss = nn.functional.mse_loss(m(x).float(), y.float())
        return loss * SCALE

    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="loss_scale_misuse", module="loss", also_module=("0", "2"), phase="backward", op="aten.sum", also_op=("aten.mm", "aten._to_copy"), first_bad_step=2, loss_finite_at_first_bad_step=True))
