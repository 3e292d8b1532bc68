"""RMSprop resumed from a checkpoint whose square_avg was stored in 8 bits and came back slightly negative at places: its square root is NaN.
True cause: corrupt optimizer state; weights, loss and gradients are finite."""
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(24, 1)); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 2, 8, generator=g), torch.randn(4, 1, generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    for b in batches[:2]: opt.zero_grad(); loss_fn(model, b).backward(); opt.step()       # the run before
    saved = copy.deepcopy(opt.state_dict())
    saved["state"][0]["square_avg"][2:, 1] = -0.5
    opt.load_state_dict(saved); opt.zero_grad()
    return dict(model=model, optimizer=opt, batches=batches[2:], loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, param="0.weight"))
