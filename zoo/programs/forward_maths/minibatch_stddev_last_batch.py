"""GAN discriminator with a minibatch-statistics layer. The data set is not divisible by the batch size, so the epoch's last batch holds
one image, and the unbiased variance over the batch axis is NaN.
True cause: variance of a single element (correction 1); drop_last or correction=0 cures it."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class MinibatchStd(nn.Module):
    def forward(s, x):
        f = (torch.var(x, dim=0) + 1e-8).sqrt().mean(); return torch.cat([x, f.expand(x.shape[0], 1, *x.shape[2:])], 1)
class D(nn.Module):
    def __init__(s):
        super().__init__(); s.c1 = nn.Conv2d(3, 8, 4, 2, 1); s.mbstd = MinibatchStd(); s.c2 = nn.Conv2d(9, 8, 3, padding=1); s.out = nn.Linear(8, 1)
    def forward(s, x): return s.out(torch.nn.functional.leaky_relu(s.c2(s.mbstd(torch.nn.functional.leaky_relu(s.c1(x), 0.2))), 0.2).mean((2, 3)))

def build():
    torch.manual_seed(8); model = D(); opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.0, 0.99))
    g = torch.Generator().manual_seed(12); data = torch.randn(26, 3, 8, 8, generator=g); batches = list(data.split(5))     # 5, 5, 5, 5, 5, 1
    def loss_fn(m, real):
        fake = real.flip(-1).roll(1, 2) * 0.5
        return nn.functional.softplus(-m(real)).mean() + nn.functional.softplus(m(fake)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="mbstd", phase="forward", op="aten.var", first_bad_step=5))
