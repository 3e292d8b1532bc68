"""Poincare embeddings: the distance is atanh of a norm that is clamped to 1; a point that reaches the boundary gives atanh(1) = Inf.
True cause: the argument is exactly at the boundary (a logarithm of zero inside atanh)."""
import torch, torch.nn as nn

class Ball(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(6, 2)
    def forward(s, i): n = torch.linalg.vector_norm(s.emb(i), dim=-1).clamp(max=1.0); return 2 * torch.atanh(n)

def build():
    torch.manual_seed(0); model = Ball(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.emb.weight.copy_(torch.tensor([[0.1, 0.2], [0.3, -0.2], [0.4, 0.1], [-0.2, 0.3], [0.1, -0.5], [1.5, 0.0]]))
    batches = [torch.tensor([0, 1, 2]), torch.tensor([1, 3, 4]), torch.tensor([0, 2, 4]), torch.tensor([3, 5, 1])]
    def loss_fn(m, i): return m(i).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=["arccos_boundary", "division_by_zero"], module="loss", phase="forward", op="aten.atanh", first_bad_step=3))
