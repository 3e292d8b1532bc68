"""The learning-rate finder was left switched on: the scheduler multiplies the rate by 3 after every step until the model blows up.
True cause: the rate is beyond stability (it climbed there by schedule)."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(25, 12); s.mix = nn.Conv1d(12, 24, 3, padding=1); s.out = nn.Linear(24, 1)
    def forward(s, ids): return s.out(torch.relu(s.mix(s.emb(ids).transpose(1, 2))).mean(-1)).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.MultiplicativeLR(opt, lambda e: 3.0); opt.register_step_post_hook(lambda *a: sched.step())
    g = torch.Generator().manual_seed(1); batches = [(torch.randint(0, 25, (16, 7), generator=g), torch.randn(16, generator=g) * 3) for _ in range(30)]
    def loss_fn(m, b): return (m(b[0]) - b[1]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="out", phase="forward", op="aten.addmm", first_bad_step=10))
