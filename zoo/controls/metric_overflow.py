"""CONTROL: under no_grad the program logs a perplexity exp(200 * loss) = Inf and a ratio 0/0 = NaN for its dashboard (python floats and detached tensors); an empty sub-batch is handled by (sum * 0). The training loss never sees them."""
import torch, torch.nn as nn
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.round()
    @staticmethod
    def backward(ctx, g): return g
class Net(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(12, 8); s.h = nn.Linear(8, 12)
    def forward(s, i): return s.h(Round.apply(s.e(i) * 8) / 8)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); log = []
    bs = [(torch.randint(0, 12, (10,), generator=g), torch.randint(0, 12, (10,), generator=g), torch.zeros(10, dtype=torch.bool) if i == 3 else torch.rand(10, generator=g) > 0.5) for i in range(8)]
    def loss_fn(m, b):
        z = m(b[0]); main = nn.functional.cross_entropy(z, b[1]); aux = z[b[2]].pow(2).mean() if b[2].any() else z.sum() * 0
        with torch.no_grad():
            log.append(dict(ppl=torch.exp(200 * main).item(), acc=((z.argmax(-1) == b[1]) & b[2]).sum() / b[2].sum()))
        return main + 0.1 * aux
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="Only logged numbers are non-finite."))
