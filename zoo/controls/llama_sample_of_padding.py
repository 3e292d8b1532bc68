"""CONTROL: Llama with a 2D mask; one sample is all padding and all of its labels are -100. transformers masks with finfo.min and the loss has other tokens: all is finite."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def build():
    torch.manual_seed(0)
    cfg = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, attn_implementation="eager")
    model = LlamaForCausalLM(cfg); opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        ids = torch.randint(3, 64, (3, 12), generator=g); mask = torch.ones_like(ids); mask[0, :4] = 0; mask[1, :] = 0
        batches.append(dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
