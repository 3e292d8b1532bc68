"""Hand-written BCE in bf16: p.clamp(1e-7, 1 - 1e-7). In bf16 the upper bound is 1.0, so log(1 - p) is log(0).
True cause: 1 - eps rounds to 1 in bf16; in fp32 the loss is finite."""
import torch, torch.nn as nn

def bce(p, y):
    p = p.clamp(1e-7, 1 - 1e-7); return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid()).to(torch.bfloat16)
    with torch.no_grad(): model[2].weight.neg_()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        x = torch.randn(8, 8, generator=g)
        if i == 5: x *= 40                                      # an easy batch with extreme features
        batches.append((x.to(torch.bfloat16), torch.randint(0, 2, (8, 1), generator=g).to(torch.bfloat16)))
    def loss_fn(m, b): return bce(m(b[0]), b[1]).float()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="loss", phase="forward", op="aten.log", first_bad_step=5))
