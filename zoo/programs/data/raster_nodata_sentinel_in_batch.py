"""An elevation raster marks missing pixels by the largest negative fp32 number, and the loader forgot to mask them. The batch is
finite; the first convolution sums several such pixels and overflows.
True cause: nonsense in the batch (sample 3 of batch 2); without that sample the step is finite."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.Softsign(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 1))
    with torch.no_grad(): model[0].weight[0].abs_().add_(0.2)                     # a smoothing filter
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 1, 9, 9, generator=g), torch.randn(6, 1, generator=g)) for _ in range(4)]
    batches[2][0][3, 0, 2:7, 2:7] = torch.finfo(torch.float32).min               # no data
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="0", phase="forward", op="aten.convolution", first_bad_step=2, bad_path="[0][3]"))
