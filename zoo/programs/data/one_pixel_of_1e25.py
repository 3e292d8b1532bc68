"""One pixel of one image is 1e25 (a float read with the wrong byte order). It is finite; the square of the first activation is not.
True cause: one input out of scale."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.c = nn.Conv2d(1, 4, 3); s.n = nn.GroupNorm(2, 4); s.f = nn.Linear(4, 3)
    def forward(s, x): return s.f(torch.relu(s.n(s.c(x))).mean((2, 3)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(6, 1, 8, 8, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(6)]
    batches[4][0][2, 0, 3, 5] = 1e25
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=["bad_input_data"], module="n", phase="forward", op="aten.native_group_norm", first_bad_step=4))
