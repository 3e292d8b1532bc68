"""A discriminator ends in a sigmoid and the GAN loss is log D(x) + log(1 - D(G(z))). Once D(G(z)) is exactly 1 the second
logarithm is -Inf. Here D meets fakes of a scale on which it is perfectly sure.
True cause: log1p(-p) at p == 1; a loss on the logits would be finite."""
import torch, torch.nn as nn

class GAN(nn.Module):
    def __init__(s):
        super().__init__(); s.gen = nn.Linear(3, 4); s.disc = nn.Sequential(nn.Linear(4, 8, bias=False), nn.LeakyReLU(0.1), nn.Linear(8, 1, bias=False), nn.Sigmoid())

def build():
    torch.manual_seed(0); model = GAN(); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.disc[0].weight.abs_(); model.disc[2].weight.abs_(); model.gen.weight.abs_()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    batches = [(torch.randn(8, 4, generator=g), torch.rand(8, 3, generator=g) * (60.0 if i == 2 else 1.0)) for i in range(4)]
    def loss_fn(m, b):
        real, fake = m.disc(b[0]), m.disc(m.gen(b[1]))
        return -(real.clamp_min(1e-6).log() + torch.log1p(-fake)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log1p", first_bad_step=2))
