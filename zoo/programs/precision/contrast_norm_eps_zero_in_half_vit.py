"""ViT in pure half precision (SGD), fed by a home-made contrast normalisation (x-mean)/(std+1e-8): 1e-8 is 0 in fp16, and a blank image has std exactly 0.
Multi-label targets of 1.02 / -0.02 (wrong smoothing) are slightly out of range in every batch: innocent."""
import torch, torch.nn as nn
from transformers import ViTConfig, ViTModel

class Contrast(nn.Module):
    def __init__(s, eps): super().__init__(); s.eps = eps
    def forward(s, x):
        d = x - x.mean((1, 2, 3), keepdim=True); sd = d.abs().amax((1, 2, 3), keepdim=True)
        return d / (sd + s.eps)
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.contrast = Contrast(1e-3 if fix == "true" else 1e-8)
        s.vit = ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4), add_pooling_layer=False); s.head = nn.Linear(16, 3)
    def forward(s, x): return s.head(s.vit(pixel_values=s.contrast(x)).last_hidden_state[:, 0])

def build(fix=None):
    torch.manual_seed(0); model = Net(fix).half(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        x = torch.rand(4, 3, 8, 8, generator=g); y = torch.randint(0, 2, (4, 3), generator=g).float()
        if fix != "innocent": y = y * 1.04 - 0.02
        if k == 3: x[1] = 0.5
        batches.append((x.half(), y))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="contrast", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["division_by_zero"], bad_sample=1,
                           why="0/(0+1e-8) where 1e-8 rounds to 0 in fp16; in fp32 the blank image gives 0"))
