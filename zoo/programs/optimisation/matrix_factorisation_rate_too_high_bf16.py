"""Matrix factorisation under bf16 autocast with SGD: the rate is far too high, the factors grow super-exponentially. bf16 has fp32's range and is innocent; so are the ratings (1..5)."""
import torch, torch.nn as nn
class MF(nn.Module):
    def __init__(s, n=20, d=8): super().__init__(); s.P = nn.Embedding(n, d); s.Q = nn.Embedding(n, d)
    def forward(s, u, i): return torch.einsum("bd,bd->b", s.P(u), s.Q(i))
def build():
    torch.manual_seed(0); model = MF(); opt = torch.optim.SGD(model.parameters(), lr=20.0); g = torch.Generator().manual_seed(1); u = torch.arange(20).repeat(3)
    bs = [(u, torch.randint(0, 20, (60,), generator=g), torch.randint(1, 6, (60,), generator=g).float()) for _ in range(20)]
    def loss_fn(m, b): return (m(b[0], b[1]).float() - b[2]).square().mean()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=torch.bfloat16,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.bmm", first_bad_step=4, loss_finite_at_first_bad_step=False,
                           also=["exploding_gradient"], why="The loss explodes over the steps before; a fraction of the rate stays finite on the same batches."))
