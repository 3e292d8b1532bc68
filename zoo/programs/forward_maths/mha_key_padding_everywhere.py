"""nn.MultiheadAttention with a key_padding_mask that is True everywhere for one sample (an image without regions).
True cause: a fully masked softmax row; the layer's other -inf are harmless."""
import torch, torch.nn as nn

class Layer(nn.Module):
    def __init__(s): super().__init__(); s.attn = nn.MultiheadAttention(8, 2, batch_first=True); s.norm = nn.LayerNorm(8)
    def forward(s, x, pad): return s.norm(x + s.attn(x, x, x, key_padding_mask=pad, need_weights=True)[0])
class Net(nn.Module):
    def __init__(s): super().__init__(); s.layers = nn.ModuleList([Layer(), Layer()]); s.head = nn.Linear(8, 3)
    def forward(s, x, pad):
        for layer in s.layers: x = layer(x, pad)
        return s.head(x.mean(1))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        n = torch.tensor([5, 3, 0 if i == 2 else 1])
        batches.append((torch.randn(3, 5, 8, generator=g), torch.arange(5)[None] >= n[:, None], torch.tensor([0, 1, 2])))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="layers.0.attn", phase="forward", op="aten._softmax", first_bad_step=2))
