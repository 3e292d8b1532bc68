"""Every frame is normalised by its own standard deviation; in a long silence it is exactly zero.
After https://github.com/philipperemy/deep-speaker/issues/5 (std(v) is zero in case of long silence).
True cause: division by zero."""
import torch
import torch.nn as nn


def normalize_frames(m):
    return torch.stack([(v - v.mean()) / v.std() for v in m])


def build():
    torch.manual_seed(7)
    speaker = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
    opt = torch.optim.SGD(speaker.parameters(), lr=0.1)
    rng = torch.Generator().manual_seed(8)
    utterances = [(torch.randn(5, 20, generator=rng), torch.randint(0, 4, (5,), generator=rng)) for _ in range(5)]
    utterances[3][0][2] = 0.0

    def loss_fn(model, batch):
        frames, who = batch
        return nn.functional.cross_entropy(model(normalize_frames(frames)), who)

    return dict(model=speaker, optimizer=opt, batches=utterances, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=3, line="(v - v.mean()) / v.std()", sample=2))
