"""CONTROL: CLIP with its temperature at the upper clamp (logit scale 100) and a duplicated caption: logits of 100, loss spikes, all finite."""
import torch
from transformers import CLIPConfig, CLIPModel

def build():
    torch.manual_seed(0)
    cfg = CLIPConfig(text_config=dict(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=12, eos_token_id=39, bos_token_id=0, pad_token_id=1),
                     vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8), projection_dim=8, logit_scale_init_value=4.6052)
    model = CLIPModel(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        ids = torch.randint(2, 39, (4, 8), generator=g); ids[:, -1] = 39
        if i == 3: ids[1] = ids[0]
        batches.append(dict(input_ids=ids, pixel_values=torch.randn(4, 3, 16, 16, generator=g) * (30.0 if i == 4 else 1.0)))
    def loss_fn(m, b):
        with torch.no_grad(): m.logit_scale.clamp_(max=4.6052)
        return m(**b, return_loss=True).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
