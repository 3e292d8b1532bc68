"""The loss is a plain .sum() in half precision. Errors are about 100 an element in all batches; batch 2 is the "large batch" (512 rows instead of 8):
2048 * 100 = 2e5 > 65504. Every element and every gradient is finite; only the reduction is not. The tiny rate is innocent."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).half(); opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    g = torch.Generator().manual_seed(1)
    batches = [((torch.randn(n, 3, generator=g) * 0.3).half(), torch.full((n, 4), 10.0).half()) for n in (8, 8, 512, 8, 8)]
    def loss_fn(m, b): return ((m(b[0]) - b[1]) ** 2).sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", also=["fp16_forward_overflow"], module="loss", where="loss_fn", phase="forward", op="aten.sum", first_bad_step=2, grads_finite=True,
                           **{"not": ["lr_too_high", "input_out_of_scale", "bad_input_data", "exploding_gradient"]}))
