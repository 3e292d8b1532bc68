"""A recommender in half precision trained by NAdam: items that are not in the batch have gradient 0, second moment 0, and eps = 1e-8 is 0 in fp16.
True cause: NAdam's eps underflows in the state's type; loss and gradients are finite, the first update is 0/0."""
import torch, torch.nn as nn

class Recommender(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Embedding(6, 5); s.item = nn.Embedding(20, 5)
    def forward(s, u, i): return (s.user(u) * s.item(i)).sum(-1)

def build():
    torch.manual_seed(0); model = Recommender().half(); opt = torch.optim.NAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 6, (24,), generator=g), torch.randint(0, 10, (24,), generator=g), torch.rand(24, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]).float(), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="item.weight"))
