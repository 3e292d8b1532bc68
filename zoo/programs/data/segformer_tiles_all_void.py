"""SegFormer on tiles: one batch of tiles lies wholly outside the labelled area, every pixel is 255 (ignored).
True cause: mean over zero valid pixels."""
import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation

def build():
    torch.manual_seed(0)
    cfg = SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
                          decoder_hidden_size=8, num_labels=4, semantic_loss_ignore_index=255)
    model = SegformerForSemanticSegmentation(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randn(2, 3, 16, 16, generator=g); y = torch.randint(0, 4, (2, 16, 16), generator=g); y[:, :3] = 255
        if i == 2: y[:] = 255
        batches.append((x, y))
    def loss_fn(m, b): return m(pixel_values=b[0], labels=b[1]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.nll_loss2d_forward", first_bad_step=2))
