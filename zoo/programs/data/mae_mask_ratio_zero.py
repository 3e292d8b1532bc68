"""ViT-MAE with a growing mask ratio that starts at 0 for the warm-up epochs: the loss is averaged over the masked patches, and there is none.
True cause: mean over zero patches."""
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

def build():
    torch.manual_seed(0)
    cfg = ViTMAEConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4, decoder_hidden_size=16, decoder_num_hidden_layers=1,
                       decoder_num_attention_heads=2, decoder_intermediate_size=16, mask_ratio=0.5, norm_pix_loss=True)
    model = ViTMAEForPreTraining(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(2, 3, 16, 16, generator=g), ratio=r) for r in (0.75, 0.5, 0.25, 0.0, 0.75)]
    def loss_fn(m, b):
        m.vit.embeddings.config.mask_ratio = b["ratio"]
        return m(pixel_values=b["x"]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=["division_by_zero"], module="loss", phase="forward", op="aten.div", first_bad_step=3))
