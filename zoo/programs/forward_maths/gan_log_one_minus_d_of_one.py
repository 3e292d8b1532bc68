"""GAN written from the paper: log(1 - sigmoid(D(fake))). The discriminator is fooled completely on one latent batch, sigmoid is
exactly 1.0 in fp32, log(0) = -inf. True cause: log(1 - p) at p = 1."""
import torch, torch.nn as nn

class GAN(nn.Module):
    def __init__(s):
        super().__init__(); s.G = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))
        s.D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = GAN(); opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        z = torch.randn(8, 4, generator=g)
        if i == 3: z[5] = z[5] * 400                                # truncation trick with the wrong sign: far tail latent
        batches.append((torch.randn(8, 8, generator=g), z))
    with torch.no_grad(): model.D[2].weight.abs_(); model.D[0].weight.copy_(model.D[0].weight.abs()); model.G[2].weight.abs_(); model.G[0].weight.mul_(0.5)
    def loss_fn(m, b):
        real, fake = m.D(b[0]), m.D(m.G(b[1]))
        return -(torch.log(real) + torch.log(1 - fake)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
