"""Weights initialised to 1e4 instead of 1e-4: each bias-free layer multiplies by 16e4. Step 0 overflows in the eighth layer (1.6e5**7 = 3e36 is finite, **8 = 4e41 is not).
The rate (0.5) looks absurd but has not been used once when it happens."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.layers = nn.ModuleList([nn.Linear(16, 16, bias=False) for _ in range(12)]); s.head = nn.Linear(16, 1)
    def forward(s, x):
        for l in s.layers: x = torch.relu(l(x))
        return s.head(x)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.5); g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for l in model.layers: l.weight.fill_(1e4)
    batches = [(0.5 + torch.rand(4, 16, generator=g), torch.randn(4, 1, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="layers.7", phase="forward", op="aten.mm", also_op=["aten.addmm"], first_bad_step=0,
                           **{"not": ["lr_too_high", "input_out_of_scale", "bad_input_data", "exploding_gradient", "exploding_recurrence", "uninitialised_memory", "corrupt_checkpoint"]}))
