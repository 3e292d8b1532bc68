"""Character-level regression head trained with SGD + momentum at a rate copied from a batch-norm ResNet recipe.
True cause: step size beyond stability; the loss grows for several steps before anything overflows."""
import torch, torch.nn as nn

class MLP(nn.Module):
    def __init__(s): super().__init__(); s.fc1 = nn.Linear(10, 40); s.fc2 = nn.Linear(40, 40); s.out = nn.Linear(40, 2)
    def forward(s, x): return s.out(nn.functional.leaky_relu(s.fc2(nn.functional.leaky_relu(s.fc1(x), 0.1)), 0.1))

def build():
    torch.set_num_threads(1); torch.manual_seed(1); model = MLP(); opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    g = torch.Generator().manual_seed(2); W = torch.randn(10, 2, generator=g); batches = []
    for _ in range(30):
        x = torch.randn(32, 10, generator=g); batches.append((x, x @ W))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="fc2", phase="forward", op="aten.addmm", first_bad_step=10))
