"""CLIP whose text projection starts at zero ("so that the image tower leads"): the embedding is divided by its own norm, 0/0.
True cause: division by a norm of exactly zero, at the first step."""
import torch
from transformers import CLIPConfig, CLIPModel

def build():
    torch.manual_seed(0)
    cfg = CLIPConfig(text_config=dict(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=12, eos_token_id=39, bos_token_id=0, pad_token_id=1),
                     vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8), projection_dim=8)
    model = CLIPModel(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.nn.init.zeros_(model.text_projection.weight)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(3):
        ids = torch.randint(2, 39, (4, 8), generator=g); ids[:, -1] = 39
        batches.append(dict(input_ids=ids, pixel_values=torch.randn(4, 3, 16, 16, generator=g)))
    def loss_fn(m, b): return m(**b, return_loss=True).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=0))
