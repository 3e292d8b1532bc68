"""OneCycleLR with the maximum of a learning-rate finder: healthy while the rate rises, the loss explodes near the peak.
After https://github.com/wandb/senpai/pull/3131 (improves in the warm-up, then destabilises as the rate approaches its peak; gradient norms of 25 billion).
True cause: the peak of the schedule is too high."""
import torch
import torch.nn as nn


def build():
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(6, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=60, pct_start=0.5, div_factor=3000, cycle_momentum=False, anneal_strategy="linear")
    optimizer.register_step_post_hook(lambda *_: sched.step())
    g = torch.Generator().manual_seed(1)
    w = torch.randn(6, 2, generator=g)
    loader = []
    for _ in range(12):
        x = torch.randn(32, 6, generator=g)
        loader.append([x, (x @ w).tanh() * 2 + 0.1 * torch.randn(32, 2, generator=g)])

    def training_step(model, batch):
        x, y = batch
        y_hat = model(x)
        return nn.functional.mse_loss(y_hat, y)

    return dict(model=net, optimizer=optimizer, batches=loader, loss_fn=training_step, steps=50, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=26, line="mse_loss(y_hat, y)"))
