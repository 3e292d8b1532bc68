"""A small CNN in fp16 with AdamW (amsgrad): the gradient of channels behind a dead ReLU is exactly 0, their second moment too, and eps =
1e-8 is 0 in fp16: 0 / 0 in the first step.
True cause: Adam's eps underflows in the state's type."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    with torch.no_grad(): model[0].bias[4] = -50.0
    model = model.half(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True, weight_decay=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 2, 8, generator=g).half(), torch.randint(0, 2, (8,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="0.weight"))
