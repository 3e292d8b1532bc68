"""The restored SGD state holds an inf in the momentum buffer of an adapter that is frozen (no gradient) until step 3. Then p += -lr * buf poisons it. The gradient of
that step is small and finite, the unfreezing is innocent: with a fresh state it is finite. The other group's rate is large and noisy."""
import copy, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(5, 5); s.adapter = nn.Linear(5, 5); s.head = nn.Linear(5, 2)
    def forward(s, x, on): h = torch.tanh(s.body(x)); return s.head(h + s.adapter(h) if on else h)

def build():
    torch.manual_seed(0); model = Net(); g = torch.Generator().manual_seed(1)
    opt = torch.optim.SGD([dict(params=list(model.body.parameters()) + list(model.head.parameters()), lr=1.5), dict(params=model.adapter.parameters(), lr=1e-3)], momentum=0.9)
    batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 2, (8,), generator=g), i >= 3) for i in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[2]), b[1])
    sd = copy.deepcopy(opt.state_dict()); buf = torch.zeros(5, 5); buf[2, 3] = float("inf")
    sd["state"] = {4: dict(momentum_buffer=buf), 5: dict(momentum_buffer=torch.zeros(5))}
    opt.load_state_dict(sd)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.add_", also_op=["aten.mul_"], first_bad_step=3, loss_finite_at_first_bad_step=True, param="adapter.weight",
                           **{"not": ["lr_too_high", "exploding_gradient", "hardware_fault", "resume_lr_jump", "uninitialised_memory"]}))
