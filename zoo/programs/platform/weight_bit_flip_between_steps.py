"""A bit of a LayerNorm gain flips in memory between two steps (1.0x -> Inf/NaN): no optimizer and no code wrote that weight.
True cause: hardware fault (a weight changed though nothing wrote it)."""
import ctypes, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.tok = nn.Embedding(20, 12); s.norm = nn.LayerNorm(12); s.ff = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12)); s.out = nn.Linear(12, 20)
    def forward(s, ids): x = s.tok(ids); return s.out(x + s.ff(s.norm(x)))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad(): model.norm.weight.fill_(1.25)
    g = torch.Generator().manual_seed(1); data = [torch.randint(0, 20, (4, 9), generator=g) for _ in range(9)]
    def stream():
        for i, ids in enumerate(data):
            if i == 5: ctypes.c_uint32.from_address(model.norm.weight.data_ptr() + 4 * 3).value ^= 1 << 30
            yield ids
    def loss_fn(m, ids): return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="hardware_fault", module="norm", phase="forward", op="aten.native_layer_norm", first_bad_step=5, state="norm.weight",
                           note="the weight is non-finite BEFORE the forward of step 5"))
