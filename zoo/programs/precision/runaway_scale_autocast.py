"""fp16 autocast with a home-made dynamic scale that only ever grows: it is multiplied by 16 after every step, since the code that should
halve it looks at the loss, which is finite. At last a gradient inside the network overflows.
True cause: a runaway loss scale; with scale 1 the same step is finite."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(10, 16); s.up = nn.Linear(16, 32); s.down = nn.Linear(32, 10)
    def forward(s, ids): return s.down(torch.relu(s.up(s.emb(ids))))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); scale = {"now": 256.0}
    def unscale(o, *a):
        for p in model.parameters(): p.grad.div_(scale["now"])
    def grow(o, *a): scale["now"] *= 16.0
    opt.register_step_pre_hook(unscale); opt.register_step_post_hook(grow); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 10, (16, 2), generator=g) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[:, 0]).float(), b[:, 1]) * scale["now"]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="down", phase="backward", op="aten.mm", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
