"""Forecasting with instance scaling. A buffer `season` is NaN throughout and never read (innocent). In batch 3 sample 1 has an input spike of 1e6 (asinh makes it harmless); sample 6's TARGET
holds the gauge's fill value 9.9e36 (netCDF): its square overflows fp32."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.rnn = nn.GRU(1, 8, batch_first=True); s.out = nn.Linear(8, 3); s.register_buffer("season", torch.full((12,), 0.0 if fix == "innocent" else float("nan")))
    def forward(s, x):
        m = x.mean(1, keepdim=True); sd = x.std(1, keepdim=True) + 1e-3; h = torch.asinh((x - m) / sd)
        return s.out(s.rnn(h[..., None])[0][:, -1])

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 12, generator=g), torch.randn(8, 3, generator=g)) for _ in range(6)]
    if fix != "innocent": batches[3][0][1, 4] = 1e6
    if fix != "true": batches[3][1][6, 2] = 9.969209968386869e36
    def loss_fn(m, b): return ((m(b[0]) - b[1]) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", module="loss", phase="forward", op="aten.pow", first_bad_step=3, loss_finite_at_first_bad_step=False, bad_sample=6, also=["bad_input_data"],
                           why="one target of 1e37 (fill value); finite without that sample; the 1e6 spike and the NaN buffer do nothing"))
