"""Mistral with gradient checkpointing; the first layer's norm was replaced by a ScaleNorm g*x/(sqrt(sum x^2)+eps). eps saves the forward only: pad tokens have a zero
embedding, first seen at step 3, and sqrt has infinite slope at 0 - inside the checkpointed region. The same norm in layer 1 is innocent (never zero)."""
import torch, torch.nn as nn
from transformers import MistralConfig, MistralForCausalLM

class ScaleNorm(nn.Module):
    def __init__(s, d, inside): super().__init__(); s.g = nn.Parameter(torch.tensor(float(d) ** 0.5)); s.inside = inside
    def forward(s, x):
        q = (x * x).sum(-1, keepdim=True)
        return s.g * x / (torch.sqrt(q + 1e-6) if s.inside else torch.sqrt(q) + 1e-6)

def build(fix=None):
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=None, sliding_window=8))
    model.model.layers[0].input_layernorm = ScaleNorm(16, fix == "true"); model.model.layers[1].input_layernorm = ScaleNorm(16, fix in ("true", "innocent"))
    with torch.no_grad(): model.model.embed_tokens.weight[0] = 0
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False)); model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        ids = torch.randint(1, 40, (2, 8), generator=g)
        if k == 3: ids[1, 6:] = 0
        batches.append(ids)
    def loss_fn(m, ids): return m(input_ids=ids, attention_mask=(ids != 0).long(), labels=ids.masked_fill(ids == 0, -100)).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="model.layers.0.input_layernorm", phase="backward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           also=["where_unselected_branch"], why="sqrt at exactly 0 for pad embeddings; the eps outside the root does not help the backward"))
