"""Molecular property prediction: message passing over dense graphs, training resumed in the middle.

What goes wrong: the checkpoint holds model and optimizer but not the scheduler. After the resume
the new StepLR starts again from its base value, a rate that had been lowered by 1e4 long ago; the
summed messages diverge. Like https://github.com/ultralytics/yolov5/issues/292 and
https://github.com/PolymathicAI/the_well/pull/63 (scheduler not restored on resume).
True cause: on resume the learning rate jumps from 1e-6 back to the base value 0.01 because the scheduler's
state was not restored."""

import torch
from torch import nn

BASE_LR = 0.01


class MessagePassing(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.msg, self.upd = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, h, adj):
        return h + torch.relu(self.upd(adj @ self.msg(h)))


class GraphNet(nn.Module):
    def __init__(self, dim=16, layers=3):
        super().__init__()
        self.embed = nn.Linear(5, dim)
        self.layers = nn.ModuleList(MessagePassing(dim) for _ in range(layers))
        self.readout = nn.Linear(dim, 1)

    def forward(self, atoms, adj):
        h = self.embed(atoms)
        for layer in self.layers:
            h = layer(h, adj)
        return self.readout(h.mean(1)).squeeze(-1)


def load_checkpoint():
    """what torch.load gave: step 40000, model, optimizer with its learning rate of that step"""
    torch.manual_seed(5)
    net = GraphNet()
    opt = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
    return {"step": 40000, "model": net.state_dict(), "optimizer": opt.state_dict()}


def scheduled(batches, scheduler):
    """The batches over and over; the script steps its schedule after each update."""
    while True:
        for batch in batches:
            yield batch
            scheduler.step()


def build():
    ckpt = load_checkpoint()
    model = GraphNet()
    model.load_state_dict(ckpt["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=BASE_LR, momentum=0.9)
    optimizer.load_state_dict(ckpt["optimizer"])
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"] = BASE_LR
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000, 0.1)
    g = torch.Generator().manual_seed(6)
    batches = []
    for _ in range(30):
        atoms = torch.randn(8, 12, 5, generator=g)
        adj = (torch.rand(8, 12, 12, generator=g) < 0.4).float()
        batches.append((atoms, adj, atoms[..., 0].sum(1)))

    def loss_fn(model, batch):
        atoms, adj, y = batch
        return (model(atoms, adj) - y).pow(2).mean()

    return dict(model=model, optimizer=optimizer, batches=scheduled(batches, scheduler), loss_fn=loss_fn, steps=30,
                autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", also=("lr_too_high", "exploding_gradient"), first_bad_step=10, phase="forward",
                           module="layers.1.msg", op="aten.addmm", line="return h + torch.relu(self.upd(adj @ self.msg(h)))",
                           repair=('group["lr"] = BASE_LR', 'group["lr"] = BASE_LR * 0.1 ** 4')))
