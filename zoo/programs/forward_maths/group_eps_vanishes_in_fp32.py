"""Two parameter groups. `head`: rate 0.8, noisy, innocent. `emb`: eps=1e-50 (copied from an fp64 script), which is 0 in fp32; it is unfrozen at step 2, and
its unused rows have gradient 0: Adam computes 0 / (0 + 0). Loss and gradients are finite in that step."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 6); s.head = nn.Linear(6, 3)
    def forward(s, i, frozen): e = s.emb(i); return s.head(e.detach() if frozen else e)

def build():
    torch.manual_seed(0); model = Net()
    opt = torch.optim.Adam([dict(params=model.head.parameters(), lr=0.8), dict(params=model.emb.parameters(), lr=1e-3, eps=1e-50)])
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 9, (6,), generator=g), torch.randint(0, 3, (6,), generator=g), i < 2) for i in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=["adam_eps_underflow_half"], module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, param="emb.weight",
                           **{"not": ["lr_too_high", "corrupt_optimizer_state", "exploding_gradient", "optimizer_constant_rounding", "hardware_fault"]}))
