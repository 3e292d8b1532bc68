"""At step 3 the loop "resumes": optimizer.load_state_dict of another run's file, whose rate is 1e15 (saved after a broken warm-up). That update is finite, step 4's
squared error is not. Weights, batches and gradients up to the jump are ordinary."""
import copy, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 1, bias=False)); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); saved = copy.deepcopy(opt.state_dict()); saved["param_groups"][0]["lr"] = 1e15
    batches = [(torch.randn(8, 4, generator=g), 1 + torch.randn(8, 1, generator=g), i == 3) for i in range(7)]
    def loss_fn(m, b):
        if b[2]: opt.load_state_dict(copy.deepcopy(saved))
        return ((m(b[0]) - b[1]) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", also=["lr_too_high"], module="loss", where="loss_fn", phase="forward", op="aten.pow", first_bad_step=4,
                           **{"not": ["bad_initialisation", "exploding_gradient", "bad_input_data", "input_out_of_scale", "corrupt_optimizer_state", "hardware_fault"]}))
