"""A direction loss that takes the sine from sqrt(1 - cos^2), at a perfect prediction."""
import torch, torch.nn as nn, torch.nn.functional as F

class Dir(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(3, 3); s.net.weight.data.copy_(torch.eye(3)); s.net.bias.data.zero_()
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = Dir(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g)) for _ in range(2)]; batches[0][0][2] = torch.tensor([2.0, 0, 0]); batches[0][1][2] = torch.tensor([4.0, 0, 0])
    def loss_fn(m, b):
        cosine = F.cosine_similarity(m(b[0]), b[1], dim=-1).clamp(-1.0, 1.0)
        sine = (1 - cosine ** 2).sqrt()
        return sine.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", where="loss_fn", module="", phase="backward", op="aten.div", first_bad_step=0, line="(1 - cosine ** 2).sqrt()", loss_finite_at_first_bad_step=True))
