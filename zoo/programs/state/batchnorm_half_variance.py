"""A model cast to fp16 with its BatchNorm: activations have a standard deviation of about 1500, which is fine, but their variance goes into a
running_var of type fp16 and passes 65504. Training normalises by the batch and sees nothing; eval would divide by Inf.
True cause: a buffer updated in forward is poisoned (bn.running_var); loss, gradients and weights are finite."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(4, 6); s.bn = nn.BatchNorm1d(6); s.head = nn.Linear(6, 2)
    def forward(s, x): return s.head(torch.relu(s.bn(s.fc(x))))

def build():
    torch.manual_seed(0); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [((torch.randn(16, 4, generator=g) * (4000.0 if i == 2 else 50.0)).half(), torch.randint(0, 2, (16,), generator=g)) for i in range(5)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", module="bn", phase="forward", op="aten.native_batch_norm", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["bn.running_var"]))
