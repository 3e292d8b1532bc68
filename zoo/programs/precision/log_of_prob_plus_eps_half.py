"""A policy gradient takes log(p + 1e-10) of a softmax in a model cast to half: 1e-10 is 0 in fp16, and so is the probability of an action it never takes.
True cause: eps underflows in half precision (the constant is 0 there); in fp32 the same loss is finite."""
import torch, torch.nn as nn

class LogProb(nn.Module):
    def forward(s, p): return torch.log(p + 1e-10)
class Policy(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(4, 12); s.out = nn.Linear(12, 3); s.logp = LogProb()
    def forward(s, x): return s.logp(s.out(torch.tanh(s.body(x))).softmax(-1))

def build():
    torch.manual_seed(0); model = Policy()
    with torch.no_grad(): model.out.weight.mul_(40.0)
    model.half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g).half() * 0.1, torch.randint(0, 3, (6,), generator=g), torch.randn(6, generator=g)) for _ in range(4)]
    with torch.no_grad():
        batches[2][0][1] = 20.0 * torch.sign((model.out.weight[0] - model.out.weight[2]).float() @ model.body.weight.float()).half()
    batches[2][1][1] = 2
    def loss_fn(m, b): return -(m(b[0]).float().gather(1, b[1][:, None]).squeeze(1) * b[2]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="logp", phase="forward", op="aten.log", first_bad_step=2))
