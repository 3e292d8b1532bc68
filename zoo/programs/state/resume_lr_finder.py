"""A run resumed at batch 3 from a file saved by the LR FINDER: optimizer.load_state_dict brings back lr = 2e10 (the end of the sweep). One step with it, and the next forward overflows. Before the resume 1e-3 was healthy. bf16 autocast is on and innocent."""
import copy, torch, torch.nn as nn
def build():
    torch.manual_seed(0); model = nn.Sequential(*[l for _ in range(5) for l in (nn.Linear(12, 12), nn.LeakyReLU(0.1))], nn.Linear(12, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    def loader():
        g = torch.Generator().manual_seed(2)
        for i in range(9):
            if i == 3:
                sd = copy.deepcopy(opt.state_dict()); sd["param_groups"][0]["lr"] = 2e10; opt.load_state_dict(sd)
            yield torch.randn(16, 12, generator=g), torch.randn(16, 1, generator=g)
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=6, autocast_dtype=torch.bfloat16,
                truth=dict(cause="resume_lr_jump", module="6", phase="forward", op="aten.addmm", first_bad_step=4, loss_finite_at_first_bad_step=False,
                           also=["lr_too_high"], why="The restored group has a rate 2e13 times that of the step before."))
