"""Early stopping keeps the best loss in a buffer that starts with inf, a plateau scheduler as well; it is finite after the first step. Healthy: the Inf is the initial value of a minimum."""
import torch, torch.nn as nn

class Best:
    def __init__(self): self.value, self.history = float("inf"), torch.full((20,), float("inf"))
    def see(self, i, v):
        self.history[i] = v
        self.value = min(self.value, v)

def build():
    torch.manual_seed(0); net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.05); best = Best(); n = [0]
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=3)
    g = torch.Generator().manual_seed(2); bs = [(x, x.sum(1, keepdim=True)) for x in torch.randn(5, 16, 4, generator=g)]
    def loss_fn(m, b):
        loss = nn.functional.mse_loss(m(b[0]), b[1]); best.see(n[0], loss.item()); n[0] += 1; sched.step(best.value)
        assert best.history.min() == best.value
        return loss
    return dict(model=net, optimizer=opt, batches=bs, steps=10, autocast_dtype=None, loss_fn=loss_fn, truth=dict(cause="benign", first_bad_step=None))
