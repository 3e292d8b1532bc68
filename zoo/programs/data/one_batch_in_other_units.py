"""A regression on pressures in bar; one file is in another unit and 1e20 times larger, inputs and targets alike.
True cause: a batch out of the scale of the others."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        x = torch.randn(8, 4, generator=g); batches.append((x, x.sum(-1)))
    batches[5] = (batches[5][0] * 1e20, batches[5][1] * 1e20)
    def loss_fn(m, b): return (m(b[0]).squeeze(-1) - b[1]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=["bad_input_data"], module="loss", phase="forward", op="aten.pow", first_bad_step=5))
