"""The checkpoint was saved with save_precision=fp16; a position scale of 70,000 became Inf in the file and is loaded into the float32 model.
After https://github.com/kohya-ss/sd-scripts/issues/293 (save_precision=fp16, loss=nan and corrupted files).
True cause: the checkpoint holds a non-finite weight."""
import io
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.freq = nn.Parameter(torch.tensor([1.0, 300.0, 70000.0]))
        self.fc = nn.Linear(3, 2)

    def forward(self, t):
        return self.fc(torch.sin(t[:, None] / self.freq))


def save(net):
    f = io.BytesIO()
    torch.save({k: v.half() for k, v in net.state_dict().items()}, f)
    return f.getvalue()


def build():
    torch.manual_seed(2)
    pretrained = save(Net())
    net = Net()
    net.load_state_dict({k: v.float() for k, v in torch.load(io.BytesIO(pretrained)).items()})
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, weight_decay=1e-4)
    g = torch.Generator().manual_seed(3)
    batches = [(torch.rand(6, generator=g) * 100, torch.randint(0, 2, (6,), generator=g)) for _ in range(3)]
    return dict(model=net, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=3, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="freq", phase="state", op="state", first_bad_step=0, state="freq", param="freq", poisoned_state=["freq"]))
