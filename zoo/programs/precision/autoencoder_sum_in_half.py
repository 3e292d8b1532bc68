"""A convolutional autoencoder in pure float16 with mse_loss(reduction="sum"): the sum over 3x64x64 pixels does not fit into float16; every pixel's error does.
True cause: the loss is reduced in half precision."""
import torch, torch.nn as nn

class Ae(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Conv2d(3, 4, 4, 4); s.dec = nn.ConvTranspose2d(4, 3, 4, 4)
    def forward(s, x): return s.dec(torch.relu(s.enc(x)))

def build():
    torch.manual_seed(0); model = Ae().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-9)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(2, 3, 64, 64, generator=g) * (3.0 if i == 3 else 1.0)).half() for i in range(5)]
    def loss_fn(m, x): return nn.functional.mse_loss(m(x), x, reduction="sum")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", also=["fp16_forward_overflow"], module="loss", phase="forward", op="aten.mse_loss", first_bad_step=3))
