"""Swin under fp16 autocast with a home-made dynamic loss scaler: it multiplies the scale by 2**8 after every good step (meant: by 2
after 2**8 good steps) and never looks for overflow. After a few steps the scaled gradients do not fit in half.
True cause: the loss scale has run away; with scale 1 the gradients of the same step are finite."""
import torch
import torch.nn.functional as F
from transformers import SwinConfig, SwinForImageClassification


class Scaler:
    def __init__(self, scale=2.0 ** 4, growth=2.0 ** 8):
        self.scale, self.growth = scale, growth

    def unscale_(self, optimizer, *args):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.div_(self.scale)

    def update(self, *args):
        self.scale *= self.growth


def build():
    torch.manual_seed(0)
    cfg = SwinConfig(image_size=16, patch_size=4, num_channels=3, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2,
                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, drop_path_rate=0.0, num_labels=5)
    model = SwinForImageClassification(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = Scaler()
    opt.register_step_pre_hook(scaler.unscale_)
    opt.register_step_post_hook(scaler.update)
    g = torch.Generator().manual_seed(1)
    batches = [{"pixel_values": torch.rand(4, 3, 16, 16, generator=g), "y": torch.randint(0, 5, (4,), generator=g)} for _ in range(6)]

    def loss_fn(m, b):
        logits = m(pixel_values=b["pixel_values"]).logits
        return F.cross_entropy(logits.float(), b["y"]) * scaler.scale

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=2,
                           node="ToCopyBackward0", loss_finite_at_first_bad_step=True))
