"""Mamba-like SSM built on meta, to_empty(), then load_state_dict(strict=False) of a checkpoint that lacks 'blocks.1.A_log': that tensor stays uninitialised
(made deterministic with torch's own NaN fill of empty memory)."""
import torch, torch.nn as nn
class SSM(nn.Module):
    def __init__(s, d): super().__init__(); s.A_log = nn.Parameter(torch.rand(d)); s.inp = nn.Linear(d, d); s.out = nn.Linear(d, d)
    def forward(s, x):
        a = torch.exp(-s.A_log.exp()); u = s.inp(x); h = torch.zeros_like(u[:, 0]); ys = []
        for t in range(x.shape[1]): h = a * h + u[:, t]; ys.append(h)
        return x + s.out(torch.stack(ys, 1))
class Mamba(nn.Module):
    def __init__(s, d=8): super().__init__(); s.emb = nn.Embedding(16, d); s.blocks = nn.ModuleList(SSM(d) for _ in range(3)); s.head = nn.Linear(d, 16)
    def forward(s, i):
        x = s.emb(i)
        for b in s.blocks: x = b(x)
        return s.head(x)
def build():
    torch.manual_seed(0); sd = {k: v.clone() for k, v in Mamba().state_dict().items() if k != "blocks.1.A_log"}
    with torch.device("meta"): model = Mamba()
    was = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try: model.to_empty(device="cpu")
    finally: torch.use_deterministic_algorithms(was)
    model.load_state_dict(sd, strict=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [torch.randint(0, 16, (2, 6), generator=g) for _ in range(3)]
    def loss_fn(m, x): return nn.functional.cross_entropy(m(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="blocks.1", phase="forward", op="aten.empty", first_bad_step=0, loss_finite_at_first_bad_step=False,
                           state="blocks.1.A_log", also=["corrupt_checkpoint"], op_note="op not scored (state fault)", why="The key is missing in the checkpoint and strict=False hides it; the memory was never filled."))
