"""CONTROL: recommender ratings with NaN for 'not rated' in targets and a metadata field full of NaN that no one reads; the loss selects the rated entries by index before any arithmetic."""
import torch, torch.nn as nn
class AE(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(12, 6); s.dec = nn.Linear(6, 12); s.dec.weight = nn.Parameter(s.enc.weight.detach().T.clone())
    def forward(s, r): return s.dec(torch.sigmoid(s.enc(torch.nan_to_num(r))))
def build():
    torch.manual_seed(0); model = AE(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); bs = []
    for _ in range(8):
        r = torch.randn(6, 12, generator=g); r[torch.rand(6, 12, generator=g) < 0.5] = float("nan"); bs.append({"ratings": r, "meta": {"age": torch.full((6,), float("nan"))}})
    def loss_fn(m, b):
        k = ~torch.isnan(b["ratings"]); return (m(b["ratings"])[k] - b["ratings"][k]).pow(2).mean()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="NaN is the code for missing and never reaches arithmetic."))
