"""fp16 autocast with torch's own GradScaler: the loss is scaled and the gradients unscaled, but optimizer.step() is called in place of scaler.step(), so
nothing is skipped when the growing scale (x 32 after each good step) makes a gradient overflow.
True cause: the loss scale; with scale 1 every gradient is finite."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(6, 24); s.mid = nn.Linear(24, 24); s.out = nn.Linear(24, 3)
    def forward(s, x): return s.out(nn.functional.gelu(s.mid(nn.functional.gelu(s.inp(x)))))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_factor=32.0, growth_interval=1)
    opt.register_step_pre_hook(lambda o, *a: scaler.unscale_(o)); opt.register_step_post_hook(lambda o, *a: scaler.update())
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return scaler.scale(nn.functional.cross_entropy(m(b[0]).float(), b[1]))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
