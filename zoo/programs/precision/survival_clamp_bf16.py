"""A span model in bfloat16: 1 - prod(1 - p) is computed as 1 - exp(sum log1p(-p)), with p clamped to 1 - 1e-6. That bound is exactly 1 in bfloat16, so it does nothing.
The forward stays finite (exp(-Inf) is 0); the backward is 0 * Inf. Threads: fastino-ai/GLiNER2#155.
True cause: 1 - eps rounds to 1 in half precision."""
import torch, torch.nn as nn

class Spans(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 8); s.score = nn.Linear(8, 1)
    def forward(s, x):
        p = torch.sigmoid(s.score(torch.tanh(s.enc(x)))).squeeze(-1)
        survive = torch.log1p(-p.clamp(max=1.0 - 1e-6)).sum(-1)
        return 1.0 - torch.exp(survive)

def build():
    torch.manual_seed(0); model = Spans().to(torch.bfloat16); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    with torch.no_grad(): model.score.weight.fill_(4.0)
    g = torch.Generator().manual_seed(1); batches = []
    w = model.enc.weight.detach().float()
    for i in range(5):
        x = 0.05 * torch.randn(3, 4, 6, generator=g)
        if i == 3: x[1, 2] = 20.0 * torch.linalg.pinv(w) @ torch.ones(8)
        batches.append((x.to(torch.bfloat16), torch.tensor([0.9, 0.5, 0.9]).to(torch.bfloat16)))
    def loss_fn(m, b): return ((m(b[0]) - b[1]) ** 2).float().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="loss", phase="forward", op="aten.log1p", also_phase=["backward"], also_op=["aten.div", "aten.mul"], first_bad_step=3, loss_finite_at_first_bad_step=True))
