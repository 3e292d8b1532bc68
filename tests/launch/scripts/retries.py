"""Two long records overflow float16; the script restores its state and tries again with a lower learning rate."""

import copy

import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class SumPool(nn.Module):
    def forward(self, x):
        return x.half().sum(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, 8)
        self.pool = SumPool()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.log1p(self.pool(self.lift(x).abs() + 20.0).float()))


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
gen = torch.Generator().manual_seed(3)
step = 0
for epoch in range(3):
    total, n = 0.0, 0
    for _ in range(8):
        length = 4096 if step in (9, 21) else 64
        x = torch.randn(4, length, 2, generator=gen)
        y = (x[:, :, 0].mean(1) > 0).long()
        for _attempt in range(4):
            state = copy.deepcopy((net.state_dict(), opt.state_dict()))
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            if torch.isfinite(loss):
                total, n = total + loss.item(), n + 1
                break
            net.load_state_dict(state[0])
            opt.load_state_dict(state[1])
            for g in opt.param_groups:
                g["lr"] /= 10
            print(f"  step {step}: loss {loss.item()}, retry with lr {opt.param_groups[0]['lr']:.1e}")
        for g in opt.param_groups:
            g["lr"] = 1e-3
        step += 1
    print(f"epoch {epoch} loss {total / n:.4f}")
