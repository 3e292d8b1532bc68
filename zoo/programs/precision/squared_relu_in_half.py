"""A model cast to half uses the squared ReLU: a hidden value of 300 in the second block fits fp16 easily, but its square, 90000, does not.
True cause: fp16 overflow of the square inside blocks.1.act; the same step in fp32 (or bf16) is finite."""
import torch, torch.nn as nn

class SquaredReLU(nn.Module):
    def forward(s, x): return x.relu().pow(2)
class Block(nn.Module):
    def __init__(s, d=12): super().__init__(); s.norm = nn.LayerNorm(d); s.up = nn.Linear(d, d); s.act = SquaredReLU(); s.down = nn.Linear(d, d)
    def forward(s, x): return x + s.down(s.act(s.up(s.norm(x))))
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(9, 12); s.blocks = nn.Sequential(*[Block() for _ in range(3)]); s.head = nn.Linear(12, 9)
    def forward(s, ids): return s.head(s.blocks(s.emb(ids)))

def build():
    torch.manual_seed(0); model = LM()
    with torch.no_grad(): model.blocks[1].up.bias[5] = 300.0; model.blocks[1].down.weight[:, 5] *= 1e-5   # an outlier channel of the pretrained model
    model.half(); opt = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 9, (2, 6), generator=g) for _ in range(3)]
    def loss_fn(m, ids): return nn.functional.cross_entropy(m(ids[:, :-1]).float().transpose(1, 2), ids[:, 1:])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="fp16_forward_overflow", module="blocks.1.act", phase="forward", op="aten.pow", first_bad_step=0))
