"""The job is preempted after step 5 and resumed: the restored optimizer state carries the peak rate of the first phase (6.0 instead of 0.02).
Until then training is calm. True cause: the rate jumped at the resume."""
import copy, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.fc1 = nn.Linear(8, 24); s.fc2 = nn.Linear(24, 24); s.out = nn.Linear(24, 1)
    def forward(s, x): return s.out(nn.functional.leaky_relu(s.fc2(nn.functional.leaky_relu(s.fc1(x), 0.2)), 0.2))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.StepLR(opt, 100, 0.9)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(20): x = torch.randn(24, 8, generator=g); batches.append((x, x[:, :1] - x[:, 1:2] * x[:, 2:3]))
    n = dict(k=0)
    def after(o, *a):
        sched.step(); n["k"] += 1
        if n["k"] == 6:
            saved = copy.deepcopy(o.state_dict()); saved["param_groups"][0]["lr"] = 6.0; o.load_state_dict(saved)
            ss = sched.state_dict(); ss["_last_lr"] = [6.0]; sched.load_state_dict(ss)
    opt.register_step_post_hook(after)
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=11, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=9))
