"""Llama instruction tuning, gradient checkpointing on: the prompts of one batch fill max_length, so every label is -100.
Threads: huggingface/transformers#16711, huggingface/trl#1125 and many more.
True cause: mean over zero tokens. The gradient is zero there."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def build():
    torch.manual_seed(0)
    cfg = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32)
    model = LlamaForCausalLM(cfg); model.gradient_checkpointing_enable(); model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        ids = torch.randint(3, 64, (2, 14), generator=g); labels = ids.clone(); labels[:, :(14 if i == 4 else 8)] = -100
        batches.append(dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.nll_loss_forward", first_bad_step=4))
