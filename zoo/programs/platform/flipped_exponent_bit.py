"""A memory fault: between two steps one exponent bit of a weight flips (0.2 becomes about 7e37) although no code writes it. The next matmul
overflows. It happens once; the same step from the weights before it is finite.
True cause: transient hardware corruption, imitated by an XOR on the raw memory behind PyTorch's back (no version bump)."""  # measure only: not to be read while rules are changed
import numpy as np, torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s, d=16): super().__init__(); s.up = nn.Linear(d, 2 * d); s.down = nn.Linear(2 * d, d)
    def forward(s, x): return x + s.down(nn.functional.gelu(s.up(x)))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(5, 16); s.blocks = nn.ModuleList([Block() for _ in range(3)]); s.out = nn.Linear(16, 1)
    def forward(s, x):
        x = 20 * s.inp(x)
        for b in s.blocks: x = b(x)
        return s.out(x)

def build():
    torch.manual_seed(31); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(35)
    data = [(torch.randn(16, 5, generator=g), torch.randn(16, 1, generator=g)) for _ in range(9)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    def stream():
        for i, b in enumerate(data):
            if i == 5:
                raw = model.blocks[1].up.weight.detach().numpy().view(np.uint32)                 # the cosmic ray
                raw.reshape(-1)[int(model.blocks[1].up.weight.abs().argmax())] ^= np.uint32(1 << 30)
            yield b
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="hardware_fault", module="blocks.1.up", phase="forward", op="aten.addmm", first_bad_step=5,
                           param="blocks.1.up.weight"))
