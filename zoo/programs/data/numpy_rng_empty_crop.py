"""A np.random.Generator in the loss draws a crop length from 0..9; the seed is chosen so that only the draw of step 2 is 0. Mean over nothing in the
term `crop`; the other terms are well. A second selection (mask) is empty in every batch but guarded by clamp(min=1)."""
import numpy as np, torch, torch.nn as nn

def draws(seed):
    r = np.random.default_rng(seed); return [int(r.integers(0, 10)) for _ in range(12)]

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    seed = next(k for k in range(100000) if [i for i, d in enumerate(draws(k)) if d == 0] == [2])
    rng = np.random.default_rng(seed); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(2, 10, 3, generator=g), hard=torch.zeros(2, 10, dtype=torch.bool)) for _ in range(5)]
    def loss_fn(m, b):
        e = (m(b["x"]) - b["x"]) ** 2
        n = int(rng.integers(0, 10))
        hard = (e.mean(-1) * b["hard"]).sum() / b["hard"].sum().clamp(min=1)
        return {"full": e.mean(), "hard": hard, "crop": 0.5 * e[:, :n].mean()}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", where="loss_fn", phase="forward", op="aten.mean", first_bad_step=2, term="crop", grads_finite=True,
                           **{"not": ["division_by_zero", "compiler_bug", "hardware_fault", "bad_input_data"]}))
