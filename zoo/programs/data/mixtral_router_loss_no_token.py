"""Mixtral with the router's load-balancing loss: an empty shard gives a batch whose attention mask is all zero; the loss divides by the number of real tokens.
True cause: a mean over zero tokens, in the auxiliary loss only (labels were not masked)."""
import torch
from transformers import MixtralConfig, MixtralForCausalLM

def build():
    torch.manual_seed(0)
    cfg = MixtralConfig(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
                        max_position_embeddings=32, output_router_logits=True, router_aux_loss_coef=0.02, attn_implementation="eager", experts_implementation="eager")
    model = MixtralForCausalLM(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        ids = torch.randint(3, 40, (2, 8), generator=g); mask = torch.ones_like(ids)
        if i == 2: ids[:] = 2; mask[:] = 0
        batches.append(dict(input_ids=ids, attention_mask=mask, labels=ids.clone()))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=["division_by_zero"], module="loss", phase="forward", op="aten.div", first_bad_step=2))
