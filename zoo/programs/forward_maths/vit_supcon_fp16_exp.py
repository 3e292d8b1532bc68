"""Contrastive training of a ViT under fp16 autocast: exp(similarity / 0.05) is taken in float16, exp(20) does not fit.
True cause: float16 exp of about 20; in float32 the step is finite."""
import torch, torch.nn as nn
from transformers import ViTConfig, ViTModel

class SupCon(nn.Module):
    def __init__(s):
        super().__init__()
        s.backbone = ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8), add_pooling_layer=False); s.proj = nn.Linear(16, 8)
    def forward(s, x): return nn.functional.normalize(s.proj(s.backbone(pixel_values=x).last_hidden_state[:, 0]), dim=-1)

def build():
    torch.manual_seed(0); model = SupCon(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 3, 16, 16, generator=g), torch.tensor([0, 0, 1, 1, 2, 2])) for _ in range(3)]
    def loss_fn(m, b):
        z = m(b[0]); same = (b[1][:, None] == b[1][None]).float()
        sim = torch.exp(z @ z.t() / 0.05)
        return -torch.log((sim * same).sum(1) / sim.sum(1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="exp_overflow", also=["fp16_forward_overflow"], module="loss", phase="forward", op="aten.exp", first_bad_step=0))
