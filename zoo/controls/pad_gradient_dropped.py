"""CONTROL: Mistral with gradient checkpointing and a ScaleNorm whose backward is NaN for zero pad embeddings - and only there: the embedding's padding_idx drops that row's gradient, so
every parameter gradient, state and loss is finite (verified). Sloppy code, healthy run."""
import torch, torch.nn as nn
from transformers import MistralConfig, MistralForCausalLM

class ScaleNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.g = nn.Parameter(torch.tensor(float(d) ** 0.5))
    def forward(s, x): return s.g * x / (torch.sqrt((x * x).sum(-1, keepdim=True)) + 1e-6)
def build(fix=None):
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0, sliding_window=8))
    model.model.layers[0].input_layernorm = ScaleNorm(16)
    with torch.no_grad(): model.model.embed_tokens.weight[0] = 0
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False)); model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        ids = torch.randint(1, 40, (2, 8), generator=g)
        if k >= 2: ids[1, 6:] = 0
        batches.append(ids)
    def loss_fn(m, ids): return m(input_ids=ids, attention_mask=(ids != 0).long(), labels=ids.masked_fill(ids == 0, -100)).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
