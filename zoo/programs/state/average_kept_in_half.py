"""The moving average of the model is kept in float16; the running variance of one layer grows past 65504, so the averaged copy becomes Inf.
After https://github.com/VinAIResearch/ISBNet/issues/6 (running_var = 16610601 in the trained weights, nan when eval).
True cause: the averaged copy is poisoned, the model is fine."""
import torch
import torch.nn as nn


class EMA(nn.Module):
    def __init__(self, net, decay=0.5):
        super().__init__()
        self.decay = decay
        for k, v in net.state_dict().items():
            if v.is_floating_point():
                self.register_buffer(k.replace(".", "__"), v.detach().half())

    @torch.no_grad()
    def update(self, net):
        for k, v in net.state_dict().items():
            if v.is_floating_point():
                avg = getattr(self, k.replace(".", "__"))
                avg.mul_(self.decay).add_(v.half() * (1 - self.decay))


def build():
    torch.manual_seed(0)
    model = nn.Module()
    model.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.5), nn.ReLU(), nn.Linear(8, 1))
    model.ema = EMA(model.net)
    opt = torch.optim.SGD(model.net.parameters(), lr=1e-3)
    opt.register_step_post_hook(lambda *_: model.ema.update(model.net))
    g = torch.Generator().manual_seed(1)
    batches = [torch.randn(16, 4, generator=g) * s for s in (10.0, 40.0, 120.0, 2000.0, 3000.0)]      # a point cloud in millimetres
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, x: (m.net(x) - 1).square().mean(), steps=5, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="optimizer", phase="optimizer", op="aten._to_copy", first_bad_step=3, loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["ema.1__running_var"], line="v.half() * (1 - self.decay)"))
