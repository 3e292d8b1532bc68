"""Resume with centred RMSprop: an older conversion script knew square_avg but put zeros there, while grad_avg came back properly. No restored
value is non-finite or negative, but the variance square_avg - grad_avg**2 is negative, and its root NaN.
True cause: inconsistent (corrupt) optimizer state; with a fresh state the step is finite."""  # measure only: not to be read while rules are changed
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(26)
    model = nn.Sequential(nn.Conv1d(2, 6, 3), nn.GELU(), nn.Conv1d(6, 6, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 1))
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True, alpha=0.99); g = torch.Generator().manual_seed(30)
    batches = [(torch.randn(12, 2, 16, generator=g) + 0.5, torch.randn(12, 1, generator=g) + 2.0) for _ in range(14)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    for b in batches[:8]: opt.zero_grad(); loss_fn(model, b).backward(); opt.step()            # the run before the interruption
    opt.zero_grad(); sd = copy.deepcopy(opt.state_dict())
    for st in sd["state"].values(): st["square_avg"].zero_()                                    # lost in conversion
    opt.load_state_dict(sd)
    return dict(model=model, optimizer=opt, batches=batches[8:], loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
