"""Gradual unfreezing: the backbone joins the optimizer with add_param_group at step 4, without a rate, so that it gets the optimizer's default of 1.
Written for this.
True cause: the learning rate of the new group is too high."""
import torch
import torch.nn as nn


class Transfer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(9, 40), nn.GELU(), nn.Linear(40, 40), nn.GELU())
        self.classifier = nn.Linear(40, 1)

    def forward(self, x):
        return self.classifier(self.backbone(x)).squeeze(-1)


def build():
    torch.manual_seed(17)
    model = Transfer()
    model.backbone.requires_grad_(False)
    opt = torch.optim.SGD([{"params": model.classifier.parameters(), "lr": 1e-2}], lr=1.0)
    step = 0

    def unfreeze(o, *_):
        nonlocal step
        step += 1
        if step == 4:
            model.backbone.requires_grad_(True)
            o.add_param_group({"params": model.backbone.parameters()})

    opt.register_step_post_hook(unfreeze)
    g = torch.Generator().manual_seed(18)
    data = [(torch.randn(20, 9, generator=g), torch.randn(20, generator=g)) for _ in range(5)]

    def loss_fn(m, xy):
        return nn.functional.mse_loss(m(xy[0]), 25 * xy[1])

    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=25, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=9, line="mse_loss(m(xy[0]), 25 * xy[1])"))
