"""A padding mask and a block mask, each finfo(bf16).min, are added in the model before attention. Where both hold the sum is -Inf; for a
query whose every key is masked twice the softmax is 0/0.
True cause: min + min overflows bf16; one mask alone is finite."""
import torch, torch.nn as nn

class Attention(nn.Module):
    def __init__(s): super().__init__(); s.qkv = nn.Linear(8, 24)
    def forward(s, x, mask): q, k, v = s.qkv(x).chunk(3, -1); return torch.softmax(q @ k.transpose(1, 2) + mask, -1) @ v
class JointMask(nn.Module):
    def forward(s, x, pad, block):
        low = torch.finfo(x.dtype).min
        return torch.zeros(x.shape[0], 1, 6, dtype=x.dtype).masked_fill(pad[:, None], low) + torch.zeros(6, 6, dtype=x.dtype).masked_fill(block, low)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.mask = JointMask(); s.attn = Attention(); s.head = nn.Linear(8, 8)
    def forward(s, x, pad, block): return s.head(s.attn(x, s.mask(x, pad, block)))

def build():
    torch.manual_seed(0); model = Net().bfloat16(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    doc = torch.tensor([0, 0, 0, 1, 1, 1]); block = doc[:, None] != doc[None]; batches = []
    for i in range(4):
        pad = torch.zeros(2, 6, dtype=torch.bool); pad[0, 5] = i > 0
        same = block.clone()
        if i == 3: pad[1] = True; same[2] = True                                  # an empty sample, and a query of no document
        batches.append((torch.randn(2, 6, 8, generator=g).bfloat16(), pad, same))
    def loss_fn(m, b): return nn.functional.mse_loss(m(*b).float(), b[0].float())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="mask_overflow", module="mask", phase="forward", op="aten.add", first_bad_step=3))
