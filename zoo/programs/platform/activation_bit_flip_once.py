"""A transient fault: in one forward call the result of a matmul has its exponent bits stuck at 1 in one place (bits set in memory, no
PyTorch operation writes it). Doing the same step again is finite. True cause: hardware fault (silent data corruption)."""
import ctypes, torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s, d): super().__init__(); s.norm = nn.LayerNorm(d); s.lin = nn.Linear(d, d)
    def forward(s, x): return x + torch.tanh(s.lin(s.norm(x)))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(8, 16); s.blocks = nn.ModuleList(Block(16) for _ in range(3)); s.out = nn.Linear(16, 4)
    def forward(s, x):
        x = s.inp(x)
        for b in s.blocks: x = b(x)
        return s.out(x)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); calls = dict(n=0)
    def cosmic_ray(mod, args, out):
        calls["n"] += 1
        if calls["n"] == 7: w = (ctypes.c_uint32 * out.numel()).from_address(out.data_ptr()); w[37] |= 0x7FC00000
    model.blocks[1].lin.register_forward_hook(cosmic_ray)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 8, generator=g), torch.randint(0, 4, (6,), generator=g)) for _ in range(10)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=9, autocast_dtype=None,
                truth=dict(cause="hardware_fault", module="blocks.1.lin", phase="forward", op="aten.addmm", first_bad_step=6))
