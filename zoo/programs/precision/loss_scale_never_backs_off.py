"""A home-made loss scaler under fp16 autocast that multiplies its scale by 64 after every good step and never backs off.
True cause: at step 3 the scale is 2**22, the gradient of the fp16 logits exceeds 65504 in the cast back; with scale 1 everything is tiny."""
import torch, torch.nn as nn

class Scaler:
    def __init__(s, opt, init=16.0, growth=64.0):
        s.scale, s.growth = init, growth; opt.register_step_pre_hook(s.unscale)
    def unscale(s, opt, *a):
        for grp in opt.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.div_(s.scale)
        s.scale *= s.growth
class Tagger(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 12); s.enc = nn.Linear(12, 12); s.tags = nn.Linear(12, 4)
    def forward(s, i): return s.tags(torch.tanh(s.enc(s.emb(i))).mean(1))

def build():
    torch.manual_seed(0); model = Tagger(); opt = torch.optim.SGD(model.parameters(), lr=0.05); sc = Scaler(opt); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 20, (8, 5), generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return sc.scale * nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", where="loss_fn", phase="backward", op="aten._to_copy", first_bad_step=3, loss_finite_at_first_bad_step=True))
