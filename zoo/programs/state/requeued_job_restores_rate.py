"""A preempted job is requeued and restores its optimizer from a checkpoint that another launcher wrote: there the rate had been multiplied by
the number of GPUs (64). The rate jumps from 0.02 to 1.28 between two steps, and the loss climbs from then on.
True cause: the rate jump at the resume; with the rate before it the same batches stay finite."""  # measure only: not to be read while rules are changed
import copy, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(8, 24); s.mid = nn.Linear(24, 24); s.out = nn.Linear(24, 2)
    def forward(s, x): return s.out(nn.functional.leaky_relu(s.mid(nn.functional.leaky_relu(s.inp(x), 0.2)), 0.2))

def build():
    torch.manual_seed(28); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5); g = torch.Generator().manual_seed(32)
    data = [(2 * torch.randn(32, 8, generator=g), 3 * torch.randn(32, 2, generator=g)) for _ in range(30)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    def epochs():
        yield from data[:10]
        ckpt = copy.deepcopy(opt.state_dict())
        for grp in ckpt["param_groups"]: grp["lr"] = 0.02 * 64                                   # as the other launcher saved it
        opt.load_state_dict(ckpt)
        yield from data[10:]
    return dict(model=model, optimizer=opt, batches=epochs(), loss_fn=loss_fn, steps=17, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", module="loss", where="loss_fn", phase="forward", op="aten.mse_loss", first_bad_step=14, resume_step=10))
