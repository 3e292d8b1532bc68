"""To save space the checkpoint was written in half and is read back as fp32: the output scale of a counter, 90000, has become Inf on the way.
True cause: a corrupt checkpoint (head.scale is Inf right after load_state_dict)."""
import io, torch, torch.nn as nn

class Head(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(6, 1); s.scale = nn.Parameter(torch.tensor([90000.0]))
    def forward(s, h): return torch.sigmoid(s.fc(h)) * s.scale
class Counter(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 6, 3)); s.head = Head()
    def forward(s, x): return s.head(s.conv(x).relu().mean(-1))

def build():
    torch.manual_seed(0); file = io.BytesIO(); torch.save({k: v.half() for k, v in Counter().state_dict().items()}, file); file.seek(0)
    model = Counter(); model.load_state_dict(torch.load(file)); opt = torch.optim.Adagrad(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 1, 8, generator=g), torch.rand(3, 1, generator=g) * 5e4) for _ in range(2)]
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="head", phase="state", op="aten.mul", first_bad_step=0, state="head.scale"))
