"""A model cast with .half(), BatchNorm included. Unscaled 12-bit sensor counts have a variance of about 90000: the normalisation itself is
computed in fp32 and is fine, but the fp16 buffer running_var climbs and becomes Inf. Training goes on happily; evaluation is ruined.
True cause: a poisoned BatchNorm buffer; loss, gradients and parameters are finite at that step."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.bn = nn.BatchNorm1d(4, momentum=0.3); s.fc = nn.Linear(4, 12); s.out = nn.Linear(12, 3)
    def forward(s, x): return s.out(torch.relu(s.fc(s.bn(x))))

def build():
    torch.manual_seed(29); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(33); batches = []
    for i in range(9):
        x = 1500 + torch.tensor([300.0, 150.0, 80.0, 20.0]) * torch.randn(64, 4, generator=g)
        batches.append((x.half(), torch.randint(0, 3, (64,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", module="bn", phase="forward", op="aten.native_batch_norm", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["bn.running_var"]))
