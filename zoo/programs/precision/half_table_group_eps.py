"""An fp16 embedding table in its own Adam group with eps 1e-8 (0 in fp16); unseen rows give 0/0. A second fp16 table in a group with eps 1e-4 is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Embedding(12, 4).half(); s.item = nn.Embedding(12, 4).half(); s.out = nn.Linear(4, 1)
    def forward(s, i, j):
        h = s.user(i).float()
        if j is not None: h = h + s.item(j).float()
        return s.out(h).squeeze(-1)
def build(fix=None):
    torch.manual_seed(0); model = Net(); 
    if fix == "innocent": model.user.float()
    opt = torch.optim.Adam([dict(params=model.user.parameters(), eps=1e-4), dict(params=model.item.parameters(), eps=1e-4 if fix == "true" else 1e-8),
                            dict(params=model.out.parameters())], lr=1e-3, foreach=False)
    g = torch.Generator().manual_seed(1); batches = []
    for k in range(5): batches.append((torch.tensor([0, 1, 2, 3]), torch.tensor([5, 6, 5, 6]) if k >= 2 else None, torch.randn(4, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), steps=5, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=2, param="item.weight",
                           loss_finite_at_first_bad_step=True, also=[], why="sqrt(v)+eps = 0 in fp16 for unseen rows of `item`"))
