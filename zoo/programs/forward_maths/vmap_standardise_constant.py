"""Per-sample standardisation through torch.func.vmap: (v - mean) / std. Sample 2 of batch 3 selects item 7, whose embedding is constant (a tied default): 0/0.
It is a zero denominator of 6 elements, not the std of one element."""
import torch, torch.nn as nn
from torch.func import vmap

class Net(nn.Module):
    def __init__(s): super().__init__(); s.item = nn.Embedding(8, 6); s.head = nn.Linear(6, 1)
    def forward(s, i): return s.item(i)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.item.weight[7] = 0.5
    batches = [(torch.randint(0, 7, (5,), generator=g), torch.randn(5, 1, generator=g)) for _ in range(5)]; batches[3][0][2] = 7
    def std(v): c = v - v.mean(); return c / (c * c).mean().sqrt()
    def loss_fn(m, b): return nn.functional.mse_loss(m.head(vmap(std)(m(b[0]))), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", where="loss_fn", phase="forward", op="aten.div", first_bad_step=3,
                           **{"not": ["std_of_one_element", "empty_reduction", "bad_input_data", "singular_gradient_at_zero"]}))
