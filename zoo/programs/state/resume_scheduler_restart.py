"""An exponential schedule has brought the rate from 5 down to 0.005 (its first epochs trained another head); on resume the scheduler is
made anew without its state, so the rate jumps back to its initial value in the midst of the run.
True cause: scheduler state not restored, a jump of the rate by 1000."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv1d(2, 8, 3, padding=1); s.mix = nn.Conv1d(8, 8, 1); s.out = nn.Conv1d(8, 2, 1)
    def forward(s, x): return s.out(nn.functional.silu(s.mix(nn.functional.silu(s.conv(x)))))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.005)
    opt.param_groups[0]["initial_lr"] = 5.0; g = torch.Generator().manual_seed(1); data = [torch.randn(4, 2, 16, generator=g) for _ in range(12)]
    def stream():
        for i, batch in enumerate(data):
            if i == 5:                                                            # resume: last_epoch=0 instead of the saved 300
                torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.977, last_epoch=0)
                opt.param_groups[0]["lr"] = opt.param_groups[0]["initial_lr"]
            yield batch
    def loss_fn(m, b): return (m(b) - b.cumsum(-1)).square().mean()
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", module="loss", phase="forward", op="aten.pow", first_bad_step=8))
