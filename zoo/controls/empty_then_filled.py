"""CONTROL: the output is allocated by new_empty (filled with NaN here, by PyTorch's own mode for uninitialised memory) and then written in full,
first the even columns and then the odd ones."""
import torch, torch.nn as nn

class Interleave(nn.Module):
    def __init__(s, d): super().__init__(); s.even = nn.Linear(d, d); s.odd = nn.Linear(d, d)
    def forward(s, x):
        before = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
        try: out = x.new_empty(x.shape[0], 2 * x.shape[1])
        finally: torch.use_deterministic_algorithms(before)
        out[:, 0::2] = s.even(x); out[:, 1::2] = s.odd(x)
        return out

def build():
    torch.manual_seed(0); model = nn.Sequential(Interleave(5), nn.Tanh(), nn.Linear(10, 2)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 5, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
