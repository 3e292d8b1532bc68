"""LayerNorm(eps=0) over sensor channels: while the device is off all channels read 0, and (x - mean) / sqrt(0) is 0/0.
True cause: division by a standard deviation of exactly zero."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.norm = nn.LayerNorm(4, eps=0.0); s.rnn = nn.GRU(4, 8, batch_first=True); s.out = nn.Linear(8, 1)
    def forward(s, x): return s.out(s.rnn(s.norm(x))[0][:, -1]).squeeze(-1)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randn(3, 5, 4, generator=g)
        if i == 2: x[1, 3] = 0.0
        batches.append((x, torch.randn(3, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="norm", phase="forward", op="aten.native_layer_norm", first_bad_step=2))
