"""On a plateau the run goes back to its best weights. Those were written in fp16 to save disk; one log-frequency scale of 9e4 became Inf in
the file, and load_state_dict brings it back between two steps.
True cause: the checkpoint is corrupt (non-finite right after loading); model, data and optimizer state before it are sound."""  # measure only: not to be read while rules are changed
import io, torch, torch.nn as nn

class Scale(nn.Module):
    def __init__(s, d): super().__init__(); s.weight = nn.Parameter(torch.logspace(0, 4.954, d))
    def forward(s, x): return x * s.weight
class Net(nn.Module):
    def __init__(s): super().__init__(); s.scale = Scale(6); s.norm = nn.LayerNorm(6); s.mlp = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    def forward(s, x): return s.mlp(s.norm(s.scale(x)))

def build():
    torch.manual_seed(27); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9); g = torch.Generator().manual_seed(31)
    data = [(torch.randn(10, 6, generator=g) * torch.logspace(0, -4.954, 6), torch.randint(0, 2, (10,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    best = io.BytesIO(); torch.save({k: v.half() for k, v in model.state_dict().items()}, best)
    def epochs():
        yield from data[:4]
        best.seek(0); model.load_state_dict(torch.load(best, weights_only=True))               # plateau: back to the best weights
        yield from data[4:]
    return dict(model=model, optimizer=opt, batches=epochs(), loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="scale", phase="forward", op="aten.mul", first_bad_step=4,
                           state="scale.weight", note="the weight is non-finite BEFORE step 4's forward"))
