"""FixMatch: pseudo-labels for the weakly augmented batch are computed under no_grad with the model in train mode, as the reference
does. In batch 3 one unlabelled clip was decoded to NaN. The confidence is NaN too, NaN > 0.3 is false, so the sample is masked out and
loss, gradients and weights stay finite. But BatchNorm updated its running statistics in the same forward: they are NaN from now on, and
evaluation is broken. The true cause is that the buffers swallowed the NaN of the clip."""
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(F.relu(self.bn(self.fc1(x))))


def loss_fn(model, batch):
    x, y, weak = batch["x"], batch["y"], batch["weak"]
    with torch.no_grad():
        prob = model(weak).softmax(-1)
    confidence, pseudo = prob.max(-1)
    supervised = F.cross_entropy(model(x), y)
    chosen = confidence > 0.3
    if not chosen.any():
        return supervised
    return supervised + F.cross_entropy(model(batch["strong"])[chosen], pseudo[chosen])


def build():
    torch.manual_seed(46)
    model = Net()
    batches = []
    for _ in range(6):
        weak = torch.randn(24, 16)
        batches.append(dict(x=torch.randn(16, 16), y=torch.randint(0, 4, (16,)), weak=weak, strong=weak + 0.3 * torch.randn(24, 16)))
    batches[3]["weak"][6] = float("nan")
    truth = dict(
        cause="bn_buffers_poisoned", also=["bad_input_data"], first_bad_step=3, phase="data", also_phase=["forward"], module="bn", also_module=["loss", "fc1"],
        op=None, also_op=["data", "aten.native_batch_norm", "aten.mm", "aten.addmm"], line="prob = model(weak).softmax(-1)", sample=6, bad_path="weak",
        why="running mean and variance take the mean of a batch with a NaN clip; the loss masks the samples out and stays finite",
        repair=("prob = model(weak)", "prob = model(weak.nan_to_num())"),
        loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["bn.running_mean", "bn.running_var"],
    )
    return dict(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.03), batches=batches, loss_fn=loss_fn, steps=6,
                autocast_dtype=None, truth=truth)
