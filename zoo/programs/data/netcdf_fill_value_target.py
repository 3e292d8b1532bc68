"""A temperature file marks missing hours by its default fill value, 9.96921e36, and the reader passes it on as a target: finite, but its square is not.
True cause: nonsense in the batch (target 4 of batch 2); without that sample the step is finite."""
import torch, torch.nn as nn

class Forecast(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(7, 16), nn.SiLU()); s.mean = nn.Linear(16, 1); s.raw = nn.Linear(16, 1)
    def forward(s, x): h = s.body(x); return s.mean(h), nn.functional.softplus(s.raw(h)) + 1e-3

def build():
    torch.manual_seed(0); model = Forecast(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(weather=torch.randn(6, 7, generator=g), kelvin=torch.randn(6, 1, generator=g)) for _ in range(5)]
    batches[2]["kelvin"][4] = 9.96921e36                                          # no measurement
    def loss_fn(m, b):
        mean, var = m(b["weather"]); return nn.functional.gaussian_nll_loss(mean, b["kelvin"], var)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="loss", phase="forward", op="aten.pow", first_bad_step=2, bad_path="kelvin[4]"))
