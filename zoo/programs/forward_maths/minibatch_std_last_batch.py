"""Minibatch standard deviation, as in some GAN discriminators, and drop_last=False: the last batch has a single sample, and the
unbiased std of one element is 0/0.
True cause: std of one element."""
import torch, torch.nn as nn

class MinibatchStd(nn.Module):
    def forward(s, x): sd = x.std(0).mean(); return torch.cat([x, sd.expand(x.shape[0], 1)], 1)

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), MinibatchStd(), nn.Linear(13, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.99)); g = torch.Generator().manual_seed(1)
    data = torch.randn(33, 6, generator=g); batches = list(data.split(8))        # 8, 8, 8, 8, 1
    def loss_fn(m, b): return nn.functional.softplus(-m(b)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="2", phase="forward", op="aten.std", first_bad_step=4))
