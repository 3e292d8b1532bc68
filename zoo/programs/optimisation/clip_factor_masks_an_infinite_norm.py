"""A clipping function wants to be safe: it multiplies the norm with (norm is finite). For one batch with targets in raw counts the gradients are about 1e20, finite,
their norm overflows, and 0 * inf is NaN; the factor then destroys all gradients.
After https://github.com/deepspeedai/DeepSpeed/pull/7171 (inf_or_nan.logical_not() * total_norm gives NaN instead of 0 when total_norm is inf).
True cause: the norm of finite gradients overflows."""
import torch
from torch import nn


def unscale_and_clip(params, max_norm):
    grads = [p.grad for p in params if p.grad is not None]
    total_norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
    inf_or_nan = total_norm.isinf() | total_norm.isnan()
    total_norm = inf_or_nan.logical_not() * total_norm + inf_or_nan * -1.0
    factor = (total_norm + 1e-6) / max_norm
    for g in grads:
        g.div_(factor.clamp(min=1.0))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        self.density = nn.Conv2d(8, 1, 1)

    def forward(self, image):
        return self.density(self.backbone(image)).sum((1, 2, 3))


def build():
    torch.manual_seed(0)
    net = Counter()
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    opt.register_step_pre_hook(lambda *_: unscale_and_clip(list(net.parameters()), 1.0))
    g = torch.Generator().manual_seed(10)
    frames = []
    for i in range(6):
        exposure = torch.full((4,), 1e20 if i == 3 else 1.0)     # photons per second, not divided by the gain
        frames.append((torch.rand(4, 1, 8, 8, generator=g), torch.rand(4, generator=g), exposure))

    def loss_fn(m, batch):
        image, count, exposure = batch
        return ((m(image) - count).abs() * exposure).mean()

    return dict(model=net, optimizer=opt, batches=frames, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", also=("zero_times_inf", "input_out_of_scale"), module="optimizer", phase="optimizer", also_phase=("grad_clip",),
                           op="aten.linalg_vector_norm", also_op=("aten.mul",), first_bad_step=3, loss_finite_at_first_bad_step=True, grads_finite=True,
                           line="total_norm = torch.linalg.vector_norm(", why="the gradients of step 3 are finite and their sum of squares is not"))
