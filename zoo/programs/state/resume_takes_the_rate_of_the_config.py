"""After a resume the scheduler is built anew from the configuration, which puts the initial rate of the first phase back into the optimizer.
After https://github.com/ultralytics/yolov5/issues/292 (when I resume, the learning rate is reset at the first epoch).
True cause: the rate jumps at the resume."""
import copy
import torch
from torch import nn

INITIAL, FINETUNE = 2.0, 0.002


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.head = nn.Linear(48, 3)

    def forward(self, x):
        return self.head(self.trunk(x))


def build():
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=FINETUNE, momentum=0.9)
    gen = torch.Generator().manual_seed(3)
    data = [(torch.randn(24, 8, generator=gen) * 2, torch.randn(24, 3, generator=gen)) for _ in range(14)]

    def loader():
        for i, batch in enumerate(data):
            if i == 5:                                   # the job is restarted here
                saved = copy.deepcopy({"net": net.state_dict(), "opt": opt.state_dict()})
                net.load_state_dict(saved["net"])
                opt.load_state_dict(saved["opt"])
                for group in opt.param_groups:
                    group["lr"] = INITIAL
            yield batch

    def loss_fn(m, batch):
        x, y = batch
        out = m(x)
        return (out - y).square().mean()

    return dict(model=net, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", also=("lr_too_high",), module="head", phase="forward", op="aten.addmm", first_bad_step=10, line="return self.head(self.trunk(x))"))
