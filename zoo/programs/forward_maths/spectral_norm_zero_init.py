"""A WGAN critic whose last layer is zero initialised and wrapped in spectral_norm: the weight is divided by its largest singular value, 0.
Threads: pytorch forum on spectral_norm and zero weights.
True cause: division by a singular value of exactly zero, in the parametrization."""
import torch, torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm

class Gan(nn.Module):
    def __init__(s):
        super().__init__(); s.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)); last = nn.Linear(16, 1); nn.init.zeros_(last.weight)
        s.critic = nn.Sequential(spectral_norm(nn.Linear(8, 16)), nn.LeakyReLU(0.2), spectral_norm(last))

def build():
    torch.manual_seed(0); model = Gan(); opt = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.9))
    g = torch.Generator().manual_seed(1); batches = [dict(real=torch.randn(6, 8, generator=g), z=torch.randn(6, 4, generator=g)) for _ in range(3)]
    def loss_fn(m, b):
        fake = m.gen(b["z"])
        return torch.relu(1 - m.critic(b["real"])).mean() + torch.relu(1 + m.critic(fake.detach())).mean() - m.critic(fake).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="critic.2.parametrizations.weight.0", phase="forward", op="aten.div", first_bad_step=0))
