"""A temperature schedule that is consumed from an iterator ends with a 0. An iterator cannot be rewound: the replay reads another value.
True cause: division by zero. No trial proves anything here; the live graph can still be read."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(6, 3); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    schedule = (t for t in [1.0, 0.7, 1.3, 0.9, 0.0])
    def loss_fn(m, b):
        t = torch.tensor(next(schedule, 0.8))
        return nn.functional.cross_entropy(m(b[0]) / t, b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4,
                           never_said=["compiled", "replace the device", "transient"]))
