"""Training runs well at 0.02; after the fourth batch the job is preempted and resumes from the optimizer state of another experiment, whose
parameter group says lr = 4. The loss explodes within a few steps.
True cause: the rate jumped at the resume."""
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(10, 20), nn.LeakyReLU(0.1), nn.Linear(20, 1)); opt = torch.optim.SGD(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(1); data = [(torch.randn(16, 10, generator=g), torch.randn(16, 1, generator=g)) for _ in range(12)]
    def stream():
        for i, batch in enumerate(data):
            if i == 4:
                saved = copy.deepcopy(opt.state_dict()); saved["param_groups"][0]["lr"] = 4.0
                opt.load_state_dict(saved)                                        # resume
            yield batch
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=8))
