"""A vector quantiser whose dead entries are reset between steps through `.data` to the mean of the samples assigned to them: none, so 0/0.
True cause: the program itself wrote NaN into codes; no hardware is at fault."""
import torch, torch.nn as nn

class VQ(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 4); s.codes = nn.Parameter(torch.randn(8, 4)); s.dec = nn.Linear(4, 6)
    def forward(s, x):
        z = s.enc(x); i = torch.cdist(z, s.codes).argmin(-1); q = s.codes[i]
        return s.dec(z + (q - z).detach()), (z.detach() - q).square().mean()
def build():
    torch.manual_seed(0); model = VQ(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    data = [torch.randn(12, 6, generator=g) for _ in range(6)]
    def stream():
        for i, x in enumerate(data):
            if i == 3: model.codes.data[5] = x[:0].mean(0)[:4]
            yield x
    def loss_fn(m, x):
        y, c = m(x); return (y - x).square().mean() + c
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="loss", phase="state", op="aten.index", first_bad_step=3, state="codes",
                           never_said=["replace the device", "nothing wrote it", "memory of this machine"]))
