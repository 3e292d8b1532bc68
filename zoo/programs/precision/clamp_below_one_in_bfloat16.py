"""p.clamp(max=1 - 1e-6) in bfloat16: the bound rounds to 1 and keeps nothing. log(1 - p) is -Inf.
True cause: an epsilon without effect in half precision."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).bfloat16(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g).bfloat16(), torch.randint(0, 2, (8,), generator=g).bfloat16()) for _ in range(5)]
    batches[3][0].mul_(60)
    def loss_fn(m, b):
        p = torch.sigmoid(m(b[0])).squeeze(-1).clamp(1e-6, 1 - 1e-6)
        return -(b[1] * p.log() + (1 - b[1]) * (1 - p).log()).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="loss", phase="forward", op="aten.log", first_bad_step=3))
