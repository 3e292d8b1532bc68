"""A "fault injection" helper of the program sets all exponent bits of one weight through a NumPy view at step 3: no version counter moves, no aten op runs.
It is the program's own write, not the device's: everything repeats, bit for bit."""
import numpy as np, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2)); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 2, (8,), generator=g), i) for i in range(6)]
    def inject(w, k): w.detach().numpy().view(np.uint32).reshape(-1)[k] |= np.uint32(0x7F800000)
    def loss_fn(m, b):
        if b[2] == 3: inject(m[2].weight, 7)
        return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="2", phase="forward", also_phase=["state"], op="aten.addmm", also_op=["numpy", "state"], also_module=["loss"], first_bad_step=3, param="2.weight",
                           **{"not": ["hardware_fault", "compiler_bug", "corrupt_checkpoint", "uninitialised_memory", "bad_input_data", "lr_too_high", "backend_or_kernel_bug"]}))
