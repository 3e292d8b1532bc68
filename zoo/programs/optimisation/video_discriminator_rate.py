"""A least-squares GAN on video frames: the generator's rate is tiny, the discriminator's rate of another paper makes its scores explode.
After https://github.com/dyelax/Adversarial_Video_Generation/issues/5 (LRATE_G 0.00004, LRATE_D 0.02: nans).
True cause: the learning rate of the discriminator is too high."""
import torch, torch.nn as nn

LRATE_G, LRATE_D = 4e-5, 0.5

class Frames(nn.Module):
    def __init__(s):
        super().__init__()
        s.G = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 48), nn.Tanh())
        s.D = nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

def build():
    torch.manual_seed(0); m = Frames()
    opt = torch.optim.SGD([dict(params=m.G.parameters(), lr=LRATE_G), dict(params=m.D.parameters(), lr=LRATE_D)], lr=1e-3)
    g = torch.Generator().manual_seed(9)
    clips = [(torch.randn(16, 32, generator=g), torch.randn(16, 48, generator=g) * 3) for _ in range(8)]
    def loss_fn(m, clip):
        past, nxt = clip
        fake = m.G(past)
        d_loss = ((m.D(nxt) - 1) ** 2).mean() + (m.D(fake.detach()) ** 2).mean()
        for p in m.D.parameters(): p.requires_grad_(False)
        g_loss = ((m.D(fake) - 1) ** 2).mean() + (fake - nxt).abs().mean()
        for p in m.D.parameters(): p.requires_grad_(True)
        return d_loss + g_loss
    return dict(model=m, optimizer=opt, batches=clips, loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=3, line="d_loss ="))
