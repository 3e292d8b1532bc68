"""Once, in the fourth forward, the exponent bits of one activation flip in memory. No operation did it (the write goes round PyTorch), and the
same step run again is finite.
True cause: a hardware fault, played by a forward hook with a counter that writes into the output of enc.2."""
import numpy as np, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12)); s.head = nn.Linear(12, 3)
    def forward(s, x): return s.head(nn.functional.gelu(s.enc(x)))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); calls = []
    def flip(module, args, out):
        calls.append(1)
        if len(calls) == 4: out.detach().numpy().view(np.int32)[2, 7] |= 0x7F800000
    model.enc[2].register_forward_hook(flip); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 6, generator=g), torch.randint(0, 3, (5,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="hardware_fault", module="enc.2", phase="forward", op="aten.addmm", first_bad_step=3, untraceable=True))
