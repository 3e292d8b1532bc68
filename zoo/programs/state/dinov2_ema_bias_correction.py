"""Dinov2 student with a running centre of the outputs, bias corrected as Adam does: centre / (1 - decay**t), and t starts at 0.
True cause: the corrected average divides by 1 - 1 = 0; the average that the model keeps is NaN while loss and gradients are finite."""
import torch, torch.nn as nn
from transformers import Dinov2Config, Dinov2Model

class Student(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = Dinov2Model(Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2, image_size=28, patch_size=14)); s.head = nn.Linear(16, 10)
        s.register_buffer("sum", torch.zeros(10)); s.register_buffer("centre", torch.zeros(10)); s.register_buffer("t", torch.zeros(()))
    def forward(s, x): return s.head(s.net(pixel_values=x).last_hidden_state[:, 0])
    @torch.no_grad()
    def update_centre(s, out, decay=0.9):
        correction = 1 - decay ** s.t
        s.centre.copy_(s.sum / correction)
        s.sum.lerp_(out.mean(0), 1 - decay); s.t += 1

def build():
    torch.manual_seed(0); model = Student(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(3, 3, 28, 28, generator=g), torch.randint(0, 10, (3,), generator=g)) for _ in range(4)]
    def loss_fn(m, b):
        out = m(b[0]); m.update_centre(out.detach())
        return nn.functional.cross_entropy(out, b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", also=["state_overwritten", "division_by_zero", "bn_buffers_poisoned"], module="loss", phase="forward", op="aten.div", also_op=["aten.copy_"], also_phase=["state"], also_module=[""], first_bad_step=0, poisoned_state=["centre"]))
