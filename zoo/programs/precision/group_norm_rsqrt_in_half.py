"""A hand-written group norm, (x - mean) * rsqrt(var + 1e-8), in a model cast to half: a flat patch has variance 0, and 1e-8 is 0 in fp16.
True cause: eps underflows in half precision; in fp32 the flat patch becomes 0."""
import torch, torch.nn as nn

class Group(nn.Module):
    def __init__(s, groups): super().__init__(); s.groups = groups
    def forward(s, x):
        y = x.reshape(x.shape[0], s.groups, -1); y = y - y.mean(-1, keepdim=True)
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-8)).view_as(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.group = Group(2); s.conv = nn.Conv1d(4, 6, 3); s.head = nn.Linear(6, 2)
    def forward(s, x): return s.head(nn.functional.silu(s.conv(s.group(x))).mean(-1))

def build():
    torch.manual_seed(0); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 4, 8, generator=g).half(), torch.randint(0, 2, (3,), generator=g)) for _ in range(4)]
    batches[1][0][2, :2] = 0.5
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="group", phase="forward", op="aten.rsqrt", first_bad_step=1))
