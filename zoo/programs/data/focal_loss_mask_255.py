"""Segmentation, hand-written focal loss: p_t = y*p + (1-y)*(1-p), log(p_t). Batch 2 holds the "ignore" value 255 in its masks: p_t = 509p - 254 is negative
(p is about 0.27) and its log NaN. No value is 0: log_of_zero is false, an eps does not help. Removing the 255 does."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Conv2d(2, 1, 3, padding=1); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.weight.mul_(0.1); model.bias.fill_(-1.0)
    batches = [dict(image=torch.randn(2, 2, 6, 6, generator=g), mask=(torch.rand(2, 1, 6, 6, generator=g) > 0.7).float()) for _ in range(5)]
    batches[2]["mask"][1, 0, 0] = 255.0
    def loss_fn(m, b):
        p = torch.sigmoid(m(b["image"])); y = b["mask"]
        pt = y * p + (1 - y) * (1 - p)
        return -((1 - pt) ** 2 * torch.log(pt + 1e-8)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", also=["input_out_of_scale", "bad_input_data"], module="loss", where="loss_fn", phase="forward", op="aten.log", first_bad_step=2,
                           **{"not": ["log_of_zero", "lr_too_high", "eps_underflow_half"]}))
