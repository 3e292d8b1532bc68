"""The rate is large and the loss grows (1.2, 1.6, 3.8, 4.1), but with ordinary data all steps stay finite; batch 4 holds ONE reading of 3e25,
squared by a feature layer. A tenth of the rate fails at the same place, the batch without that sample does not."""
import torch, torch.nn as nn

class Quad(nn.Module):
    def forward(s, x): return torch.cat([x, x ** 2], -1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.quad = Quad(); s.lin = nn.Linear(12, 1)
    def forward(s, x): return s.lin(s.quad(x))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.6)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(16, 6, generator=g), torch.randn(16, 1, generator=g)) for _ in range(7)]
    batches[4][0][5, 2] = 3e25
    def loss_fn(m, b): return (m(b[0]) - b[1]).abs().mean() + 0.3 * ((m(b[0]) - b[1]) ** 2).mean().sqrt()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=["bad_input_data"], module="quad", phase="forward", op="aten.pow", first_bad_step=4,
                           bad_path="[0][5]", **{"not": ["lr_too_high", "exploding_gradient", "bad_initialisation"]}))
