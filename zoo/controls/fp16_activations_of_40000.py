"""CONTROL: fp16 autocast with activations of about 40000, finfo.min masks through masked_fill, and a loss in fp32."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.Linear(8, 8); s.k = nn.Linear(8, 8); s.o = nn.Linear(8, 2)
    def forward(s, x):
        w = s.q(x) @ s.k(x).transpose(1, 2); w = w.masked_fill(torch.ones_like(w, dtype=torch.bool).triu(1), torch.finfo(w.dtype).min)
        return s.o(torch.softmax(w.float(), -1) @ x)
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.q.bias.fill_(70.0); model.k.bias.fill_(70.0)
    batches = [(torch.randn(2, 5, 8, generator=g), torch.randn(2, 5, 2, generator=g)) for _ in range(5)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]).float(), b[1]), steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="70*70*8 = 39200 fits"))
