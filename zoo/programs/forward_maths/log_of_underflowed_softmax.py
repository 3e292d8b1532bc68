"""The loss takes torch.log of a softmax: for one far outlier the probability of the right class underflows to exactly 0.
True cause: log of zero; log_softmax on the same logits is finite."""
import torch, torch.nn as nn

class Classifier(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU()); s.head = nn.Linear(16, 4); s.prob = nn.Softmax(-1)
    def forward(s, x): return s.prob(s.head(s.body(x)))

def build():
    torch.manual_seed(0); model = Classifier(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(5)]
    batches[3][0][4] *= 400.0
    with torch.no_grad(): batches[3][1][4] = model(batches[3][0][4:5]).argmin()   # the outlier is of the least likely class
    def loss_fn(m, b): return nn.functional.nll_loss(torch.log(m(b[0])), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
