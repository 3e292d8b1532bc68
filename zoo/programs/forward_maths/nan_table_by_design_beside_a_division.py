"""A buffer holds NaN by design (days without a measurement, read through nan_to_num). It was so from the start and does no harm. What fails is
the standardisation of a blank series.
True cause: division by zero; the buffer is innocent."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); t = torch.randn(7, 4); t[::3] = float("nan"); s.register_buffer("climate", t); s.lin = nn.Linear(8, 1)
    def forward(s, x, day):
        c = torch.nan_to_num(s.climate[day]); return s.lin(torch.cat([x, c], -1)).squeeze(-1)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randint(0, 7, (8,), generator=g), torch.randn(8, generator=g)) for _ in range(6)]
    batches[4][0][3] = 2.5
    def loss_fn(m, b):
        x, day, y = b
        z = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        return (m(z, day) - y).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4,
                           never_said=["climate", "replace the device"]))
