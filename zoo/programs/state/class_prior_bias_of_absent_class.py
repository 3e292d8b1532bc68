"""Long-tail classifier: at the start of each epoch the head's bias is set to log(class prior), computed with NumPy. In the second
epoch's subset one class has no sample, log(0) is -inf, and it is written into the bias through .data. No label of the batch is that
class, and the plain cross-entropy would survive it, but label smoothing touches every class.
True cause: the program wrote -inf into head.bias. TRAP: label smoothing and the labels are tempting, the logits are finite but one."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 6


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(10, 24), nn.LayerNorm(24), nn.GELU())
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.features(x))


def set_prior(head, counts):
    with np.errstate(divide="ignore"):
        prior = np.log(counts / counts.sum()).astype(np.float32)
    head.bias.data.copy_(torch.from_numpy(prior))


def build():
    torch.manual_seed(0)
    model = Classifier()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    counts = {0: np.array([90., 40., 20., 9., 4., 2.]), 3: np.array([88., 41., 22., 8., 5., 0.])}
    batches = [{"x": torch.randn(16, 10, generator=g), "y": torch.randint(0, 5, (16,), generator=g), "counts": counts.get(i)}
               for i in range(6)]

    def loss_fn(m, b):
        if b["counts"] is not None:
            set_prior(m.head, b["counts"])
        return F.cross_entropy(m(b["x"]), b["y"], label_smoothing=0.1)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="head", phase="state", op=None, first_bad_step=3, state="head.bias", trap=True,
                           also=dict(phase=["forward"], op=["aten.addmm", "aten.copy_"])))
