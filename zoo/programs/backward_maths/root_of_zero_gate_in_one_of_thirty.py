"""30 parameters; the branch gate of layer 6 is sqrt(alpha) with alpha = 0 ("start as identity"). Loss finite, 29 gradients finite, one is inf.
The other layers use alpha directly. SkipInit with 0 is fine, its square root is not."""
import torch, torch.nn as nn

class Layer(nn.Module):
    def __init__(s, root): super().__init__(); s.lin = nn.Linear(5, 5); s.alpha = nn.Parameter(torch.zeros(())); s.root = root
    def forward(s, x): return x + (torch.sqrt(s.alpha) if s.root else s.alpha) * torch.tanh(s.lin(x))
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.layers = nn.ModuleList([Layer(i == 6) for i in range(9)]); s.norm = nn.LayerNorm(5, elementwise_affine=False)
        s.head = nn.Linear(5, 2); s.scale = nn.Parameter(torch.ones(()))
    def forward(s, x):
        for l in s.layers: x = l(x)
        return s.head(s.norm(x)) * s.scale

def build():
    torch.manual_seed(0); model = Net(); gates = [l.alpha for l in model.layers]; rest = [p for n, p in model.named_parameters() if "alpha" not in n]
    opt = torch.optim.SGD([dict(params=rest, lr=0.5), dict(params=gates, lr=1e-6)], lr=0.5); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(4)]
    def loss_fn(m, b): return {"ce": nn.functional.cross_entropy(m(b[0]), b[1]), "l2": 1e-4 * m.head.weight.pow(2).sum()}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="layers.6", phase="backward", op="aten.sqrt", also_op=["aten.div"], first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="layers.6.alpha",
                           **{"not": ["lr_too_high", "where_unselected_branch", "uninitialised_memory", "exploding_gradient", "division_by_zero"]}))
