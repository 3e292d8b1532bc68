"""A network in fp16 with a reconstruction loss summed over all pixels, in fp16: every squared error is small, their sum passes 65504.
True cause: the reduction of the loss in half precision."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 64)).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-5); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(64, 64, generator=g) * (12.0 if i == 2 else 4.0)).half() for i in range(4)]
    def loss_fn(m, b): return (m(b) - b).square().sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.sum", first_bad_step=2, grads_finite=True))
