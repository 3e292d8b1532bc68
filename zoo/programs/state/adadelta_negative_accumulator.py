"""Adadelta resumed from a checkpoint whose acc_delta went through an 8-bit round trip and came back slightly negative in one row: its square root is NaN.
True cause: corrupt optimizer state; loss, gradients and weights are finite, and a fresh state works."""
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 9), nn.Softplus(), nn.Linear(9, 3)); opt = torch.optim.Adadelta(model.parameters(), lr=0.5)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 5, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(7)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    for b in batches[:3]: opt.zero_grad(); loss_fn(model, b).backward(); opt.step()
    saved = copy.deepcopy(opt.state_dict()); saved["state"][2]["acc_delta"][1] = -0.004
    opt.load_state_dict(saved); opt.zero_grad()
    return dict(model=model, optimizer=opt, batches=batches[3:], loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="2.weight"))
