"""Matrix factorisation with a warm-up that was meant to end at 0.1: the lambda returns 10**step instead of min(1, step/10), so the
rate is 0.01, 0.1, 1, 10, 100 ... Loss and weights grow from step to step until a product of two embeddings overflows.
True cause: the learning rate. At a tenth (or a hundredth) of the rate the run is finite; the ratings are ordinary."""
import torch
import torch.nn as nn


class Dot(nn.Module):
    def forward(self, a, b):
        return (a * b).sum(-1)


class Factorisation(nn.Module):
    def __init__(self, users=20, items=30, d=8):
        super().__init__()
        self.user, self.item = nn.Embedding(users, d), nn.Embedding(items, d)
        self.score = Dot()

    def forward(self, u, i):
        return self.score(self.user(u), self.item(i))


def build():
    torch.manual_seed(0)
    model = Factorisation()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 10.0 ** step)
    opt.register_step_post_hook(lambda *args: schedule.step())
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 20, (64,), generator=g), torch.randint(0, 30, (64,), generator=g),
                torch.randint(1, 6, (64,), generator=g).float()) for _ in range(12)]

    def loss_fn(m, b):
        return nn.functional.mse_loss(m(b[0], b[1]), b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="score", phase="forward", op="aten.mul", first_bad_step=7))
