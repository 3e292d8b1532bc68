"""F.normalize in a half-precision projector: its eps of 1e-12 is 0 in fp16, so the clamp under the norm does nothing for a row that ReLU has set to 0.
True cause: eps underflows in half precision; in fp32 F.normalize of a zero row is 0."""
import torch, torch.nn as nn

class Unit(nn.Module):
    def forward(s, x): return nn.functional.normalize(x, dim=-1)
class Projector(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(6, 10); s.unit = Unit(); s.out = nn.Linear(10, 4)
    def forward(s, x): return s.out(s.unit(s.fc(x).relu()))

def build():
    torch.manual_seed(0); model = Projector()
    with torch.no_grad(): model.fc.weight.abs_()
    model.half(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 6, generator=g).abs().half(), torch.randint(0, 4, (5,), generator=g)) for _ in range(4)]
    batches[2][0][3] = -4.0                                                       # every unit is off
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float() / 0.2, b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="unit", phase="forward", op="aten.div", first_bad_step=2))
