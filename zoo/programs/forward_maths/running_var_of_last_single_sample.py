"""A home-made running normaliser keeps running_var = lerp(running_var, x.var(0)). The epoch's last batch (step 3) has ONE sample: unbiased var of one is NaN.
Training normalises with max-abs, so loss and gradients stay finite; only the buffer is bad. The single sample is healthy data."""
import torch, torch.nn as nn

class RunNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.register_buffer("running_var", torch.ones(d))
    def forward(s, x):
        with torch.no_grad(): s.running_var.lerp_(x.var(0), 0.1)
        return x / x.abs().amax().clamp(min=1e-3) if s.training else x / s.running_var.sqrt()

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 6), RunNorm(6), nn.Linear(6, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); X, Y = torch.randn(25, 4, generator=g), torch.randn(25, 1, generator=g)
    batches = list(zip(X.split(8), Y.split(8)))                            # 8, 8, 8, 1
    def loss_fn(m, b): return {"mse": nn.functional.mse_loss(m(b[0]), b[1]), "l2": 1e-3 * m[0].weight.pow(2).sum()}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", also=["bn_buffers_poisoned"], module="1", phase="forward", op="aten.var", also_op=["aten.lerp_"], first_bad_step=3,
                           loss_finite_at_first_bad_step=True, poisoned_state=["1.running_var"],
                           **{"not": ["bad_input_data", "hardware_fault", "empty_reduction", "division_by_zero", "state_overwritten"]}))
