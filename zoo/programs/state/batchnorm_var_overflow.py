"""ECG network with BatchNorm: one recording of batch 3 has a value of 1e23 (a wrong gain). The batch variance overflows to inf, the normalised output is 0: the loss is finite.
True cause: running_var swallowed the inf; training looks calm, but the buffer never recovers."""
import torch, torch.nn as nn

class Stage(nn.Module):
    def __init__(s, i, o): super().__init__(); s.conv = nn.Conv1d(i, o, 3, padding=1); s.bn = nn.BatchNorm1d(o)
    def forward(s, x): return torch.relu(s.bn(s.conv(x)))
class ECG(nn.Module):
    def __init__(s): super().__init__(); s.stages = nn.Sequential(Stage(2, 6), Stage(6, 6)); s.head = nn.Linear(6, 2)
    def forward(s, x): return s.head(s.stages(x).mean(-1))

def build():
    torch.manual_seed(0); model = ECG(); opt = torch.optim.SGD(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 2, 12, generator=g), torch.randint(0, 2, (6,), generator=g), i < 5) for i in range(7)]
    batches[3][0][4, 1, 7] = 1e23
    def loss_fn(m, b): m.train(b[2]); return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", also=["input_out_of_scale", "bad_input_data"], module="stages.0.bn", phase="forward", op="aten.native_batch_norm", first_bad_step=3,
                           poisoned_state=["stages.0.bn.running_var"]))
