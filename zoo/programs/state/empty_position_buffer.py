"""A table of position codes is registered as torch.empty and only its even columns are ever filled.
True cause: uninitialised memory in the buffer pos.table (NaN here, by PyTorch's own fill of uninitialised memory while building)."""
import math, torch, torch.nn as nn

class Position(nn.Module):
    def __init__(s, T=8, d=6):
        super().__init__(); table = torch.empty(T, d)
        table[:, 0::2] = torch.sin(torch.arange(T)[:, None] * torch.exp(-math.log(1e4) * torch.arange(0, d, 2) / d))   # and the cosine?
        s.register_buffer("table", table)
    def forward(s, x): return x + s.table[: x.shape[1]]
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(11, 6); s.pos = Position(); s.head = nn.Linear(6, 11)
    def forward(s, ids): return s.head(s.pos(s.emb(ids)))

def build():
    torch.manual_seed(0); before = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try: model = Net()
    finally: torch.use_deterministic_algorithms(before)
    opt = torch.optim.SGD(model.parameters(), lr=0.1); g = torch.Generator().manual_seed(1); batches = [torch.randint(0, 11, (3, 8), generator=g) for _ in range(2)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b).flatten(0, 1), b.flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="pos", phase="forward", op="aten.empty", first_bad_step=0, state="pos.table"))
