"""AdamW decays by lr * weight_decay; the rate was raised to 0.5 and the decay is 200, so every step multiplies the weights by -99.
Written for this.
True cause: the learning rate is too high for this decay (or the decay for this rate); the gradients have no part in it."""
import torch, torch.nn as nn

def build(lr=0.5, wd=200.0):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv1d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 14, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=wd)
    g = torch.Generator().manual_seed(0)
    waves = [torch.sin(torch.arange(16) * f)[None, None].repeat(4, 1, 1) + 0.1 * torch.randn(4, 1, 16, generator=g) for f in (0.3, 0.5, 0.7)]
    def loss_fn(net, w):
        out = net(w)
        return (out ** 2 - 1).abs().mean()
    return dict(model=net, optimizer=opt, batches=waves, loss_fn=loss_fn, steps=30, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), module="loss", phase="forward", op="aten.pow", first_bad_step=10, line="(out ** 2 - 1)"))
