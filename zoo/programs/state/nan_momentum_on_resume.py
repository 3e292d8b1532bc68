"""SGD resumed with a momentum buffer that was saved after the bad step of a crashed run: the weights were cleaned by hand, the momentum not.
True cause: corrupt optimizer state (NaN in momentum_buffer before the first step)."""
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 3)); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    for b in batches[:2]: opt.zero_grad(); loss_fn(model, b).backward(); opt.step()
    saved = copy.deepcopy(opt.state_dict()); saved["state"][0]["momentum_buffer"][4] = float("nan")
    opt.load_state_dict(saved); opt.zero_grad()
    return dict(model=model, optimizer=opt, batches=batches[2:], loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="state", op="aten.mul_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="0.weight", state="0.weight.momentum_buffer"))
