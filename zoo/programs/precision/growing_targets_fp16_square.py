"""Curriculum: targets double at every step, so the loss grows up to fourfold each time and looks like divergence; the rate is tiny and innocent.
What fails is an energy layer under fp16 autocast: with the learned gain of microphone 3 the Gram sum is far above 65504 (1e7). fp32 takes it (log1p)."""
import torch, torch.nn as nn

class Gram(nn.Module):
    def forward(s, x): return torch.matmul(x, x.transpose(1, 2)).diagonal(dim1=1, dim2=2)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.up = nn.Linear(4, 64); s.gain = nn.Embedding(4, 1); s.gram = Gram(); s.head = nn.Linear(3, 1)
    def forward(s, x, mic): return s.head(torch.log1p(s.gram(s.up(x) * s.gain(mic)[:, None]).float()))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    with torch.no_grad(): model.up.bias.fill_(1.0); model.gain.weight.copy_(torch.tensor([[1.0], [1.2], [0.8], [600.0]]))   # "pretrained" gains
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        mic = torch.randint(0, 3, (8,), generator=g)
        if i == 5: mic[6] = 3
        batches.append((torch.randn(8, 3, 4, generator=g), mic, 2.0 ** i * torch.ones(8, 1)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]).float(), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="gram", phase="forward", op="aten.bmm", first_bad_step=5,
                           **{"not": ["lr_too_high", "exploding_gradient", "input_out_of_scale"]}))
