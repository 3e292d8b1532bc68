"""A half-precision model with two inputs casts the second of the day to its own type before scaling it: after 18:11:44 the number is above 65504.
True cause: fp16 overflow of the cast inside the clock module; in fp32, or divided by 86400 first, it is finite."""
import torch, torch.nn as nn

class Clock(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(2, 8)
    def forward(s, seconds):
        phase = seconds.to(s.fc.weight.dtype) / 13751.0; return s.fc(torch.stack([phase.sin(), phase.cos()], -1))
class Demand(nn.Module):
    def __init__(s): super().__init__(); s.clock = Clock(); s.load = nn.Linear(4, 8); s.out = nn.Linear(8, 1)
    def forward(s, load, seconds): return s.out(torch.tanh(s.load(load.half()) + s.clock(seconds))).squeeze(-1)

def build():
    torch.manual_seed(0); model = Demand().half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [dict(load=torch.randn(5, 4, generator=g), seconds=torch.randint(h * 3600, (h + 1) * 3600, (5,), generator=g), y=torch.randn(5, generator=g))
               for h in (6, 12, 17, 20, 3)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b["load"], b["seconds"]).float(), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="fp16_forward_overflow", module="clock", phase="forward", op="aten._to_copy", first_bad_step=3))
