"""A causal convolution overrides reset_parameters for its own weights and forgets the bias, which nn.Conv1d has allocated by torch.empty and left to that method.
True cause: uninitialised memory in stem.bias (NaN here, by PyTorch's own fill of uninitialised memory while building)."""
import torch, torch.nn as nn

class Causal(nn.Conv1d):
    def reset_parameters(s): nn.init.orthogonal_(s.weight)
    def forward(s, x): return super().forward(nn.functional.pad(x, (2, 0)))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.stem = Causal(2, 6, 3); s.norm = nn.InstanceNorm1d(6); s.head = nn.Linear(6, 2)
    def forward(s, x): return s.head(torch.tanh(s.norm(s.stem(x))).mean(-1))

def build():
    torch.manual_seed(0); before = torch.are_deterministic_algorithms_enabled(); torch.use_deterministic_algorithms(True)
    try: model = Net()
    finally: torch.use_deterministic_algorithms(before)
    opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 2, 9, generator=g), torch.randint(0, 2, (3,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="stem", phase="forward", op="aten.empty", first_bad_step=0, state="stem.bias"))
