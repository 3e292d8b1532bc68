"""CONTROL: CLIP under bf16 autocast with padded captions, one of them empty but for its end token, a large but bounded logit scale (100), and a high rate. Finite."""
import torch
from transformers import CLIPConfig, CLIPModel

def build():
    torch.manual_seed(0); common = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, projection_dim=8)
    cfg = CLIPConfig(text_config=dict(vocab_size=20, max_position_embeddings=8, bos_token_id=1, eos_token_id=2, pad_token_id=0, **common), vision_config=dict(image_size=8, patch_size=4, **common), projection_dim=8, logit_scale_init_value=4.605)
    model = CLIPModel(cfg); opt = torch.optim.AdamW(model.parameters(), lr=5e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        ids = torch.randint(3, 20, (4, 7), generator=g); n = torch.randint(3, 7, (4,), generator=g); n[0] = 1
        ids[torch.arange(7)[None] >= n[:, None]] = 0; ids[torch.arange(4), n - 1] = 2
        batches.append(dict(input_ids=ids, attention_mask=(ids != 0).long(), pixel_values=torch.randn(4, 3, 8, 8, generator=g)))
    def loss_fn(m, b): return m(**b, return_loss=True).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.bfloat16, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
