"""Gumbel noise from a generator of the program's own: the uniform draw is quantised to 1/64 and is sometimes exactly 0.
True cause: log(0). A replay that draws other numbers is finite, and proves nothing about compilers or hardware."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    noise = torch.Generator().manual_seed(5); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 6, generator=g), torch.randint(0, 4, (4,), generator=g)) for _ in range(12)]
    def loss_fn(m, b):
        u = (torch.rand(4, 4, generator=noise) * 64).floor() / 64
        logits = m(b[0]) - torch.log(-torch.log(u + 1e-20 * 0))
        return nn.functional.cross_entropy(logits, b[1]) + (logits.softmax(-1) * logits).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=9,
                           never_said=["compiled", "replace the device", "transient"]))
