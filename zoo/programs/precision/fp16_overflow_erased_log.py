"""Deep clustering (Student-t kernel) under fp16 autocast: the projection overflows to Inf, 1/(1+Inf) = 0 hides it, and log(0) in fp32 shows
it far away. In fp32 the similarity is a small but positive number. log() without eps looks guilty, lr looks guilty; the fp16 product is."""
import torch, torch.nn as nn

class Kernel(nn.Module):
    def forward(s, z): return 1.0 / (1.0 + z.abs().float())
class Ent(nn.Module):
    def forward(s, q): return -torch.log(q).mean()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 8); s.proj = nn.Linear(8, 4, bias=False); s.kern = Kernel(); s.ent = Ent()
    def forward(s, x): return s.ent(s.kern(s.proj(torch.relu(s.enc(x)))))

def build(fix=None):
    torch.manual_seed(0); model = Net(); g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.enc.weight[0] = torch.tensor([30.0, 0, 0, 0, 0, 0]); model.enc.bias[0] = -90.0; model.proj.weight[2, 0] = 100.0   # unit 0 wakes for x0 > 3
    opt = torch.optim.SGD(model.parameters(), lr=1e-4 if fix == "innocent" else 0.05)
    batches = [torch.randn(8, 6, generator=g).clamp(-2.5, 2.5) for _ in range(6)]
    batches[3][6, 0] = 45.0 + 3.0
    def loss_fn(m, b): return m(b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None if fix == "true" else torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="proj", phase="forward", op="aten.mm", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="1350*100 = 135000 > 65504 in fp16; erased by 1/(1+Inf), returns as log(0); finite in fp32"))
