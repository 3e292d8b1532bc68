"""A convolution of raw 16-bit samples overflows under fp16 autocast."""
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(s): super().__init__(); s.stem = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5)); s.head = nn.Linear(8, 3)
    def forward(s, x): return s.head(s.stem(x).mean(-1))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.stem[2].weight.fill_(0.9); model.stem[0].weight.abs_()
    batches = [(torch.rand(3, 1, 30, generator=g) * 30000, torch.randint(0, 3, (3,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return F.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="stem.2", phase="forward", op="aten.convolution", first_bad_step=0, line="s.head(s.stem(x)"))
