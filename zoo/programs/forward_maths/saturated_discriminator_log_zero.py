"""GAN: log(1 - D(fake)) with D saturated at exactly 1 in float32.
True cause: log of zero."""
import torch, torch.nn as nn

class GAN(nn.Module):
    def __init__(s): super().__init__(); s.g = nn.Linear(3, 4); s.d = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    def forward(s, z): return torch.sigmoid(s.d(s.g(z)))
def build():
    torch.manual_seed(0); model = GAN(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.d[2].weight.abs_()
    batches = [torch.randn(8, 3, generator=g) for _ in range(5)]; batches[3][6] *= 500
    def loss_fn(m, z): return torch.log(1 - m(z)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
