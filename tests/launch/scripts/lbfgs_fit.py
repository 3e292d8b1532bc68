"""A curve is fitted by LBFGS to plain tensors; in the fourth step exp overflows, and the old values are restored."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
a = torch.tensor(0.8, requires_grad=True)
b = torch.tensor(0.9, requires_grad=True)
opt = torch.optim.LBFGS([a, b], lr=0.5, max_iter=5)

for epoch in range(6):
    t = torch.linspace(0, 2 if epoch < 3 else 300, 40)
    target = 1.2 * torch.exp(1.0 * t.clamp(max=2)) + 0.01 * torch.randn(40)
    old = [a.detach().clone(), b.detach().clone()]

    def closure():
        opt.zero_grad()
        pred = a * torch.exp(b * t)
        loss = ((pred - target) ** 2).mean()
        loss.backward()
        return loss

    loss = opt.step(closure)
    print(f"epoch {epoch} loss {float(loss):.4f} a {a.item():.3f} b {b.item():.3f}")
    if not all(torch.isfinite(x) for x in (loss, a, b)):
        with torch.no_grad():
            a.copy_(old[0])
            b.copy_(old[1])
        print("fit diverged, keeping the last good parameters")
        break
print("final", a.item(), b.item())
