"""A phase oscillator h = remainder(3h, 1): the forward never leaves [0, 1), but each of its turns multiplies the gradient by 3.
10 turns in ordinary batches, 120 turns (3**120 = 1e57) in batch 3: the gradient overflows inside the loop of one module. Adam's rate is 1e-5."""
import torch, torch.nn as nn

class Osc(nn.Module):
    def forward(s, x, turns):
        h = x
        for _ in range(turns): h = torch.remainder(h * 3.0, 1.0)
        return h
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(4, 5); s.osc = Osc(); s.head = nn.Linear(5, 1)
    def forward(s, x, n): return s.head(s.osc(s.enc(x), n))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-5); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), 120 if i == 3 else 10, 3 + torch.rand(6, 1, generator=g)) for i in range(5)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", also=["exploding_gradient"], module="osc", phase="backward", op="aten.mul", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           **{"not": ["lr_too_high", "bad_input_data", "bad_initialisation", "input_out_of_scale", "where_unselected_branch"]}))
