"""Resume in the middle: the optimizer state restored at step 3 carries the learning rate of another recipe (25 instead of 0.005).
True cause: the rate jumped 5000-fold at the resume; before it training was calm, and with the old rate it stays calm."""
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 24), nn.LeakyReLU(0.3), nn.Linear(24, 24), nn.LeakyReLU(0.3), nn.Linear(24, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.5); g = torch.Generator().manual_seed(1)
    saved = copy.deepcopy(opt.state_dict()); saved["param_groups"][0]["lr"] = 25.0
    batches = [dict(x=torch.randn(32, 8, generator=g), y=torch.randn(32, 2, generator=g), resume=i == 3) for i in range(12)]
    def loss_fn(m, b):
        if b["resume"]: opt.load_state_dict(copy.deepcopy(saved))
        return nn.functional.mse_loss(m(b["x"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", also=["lr_too_high"], module="4", phase="forward", op="aten.addmm", first_bad_step=6))
