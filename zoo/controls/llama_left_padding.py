"""CONTROL: Llama fine-tuning with left padding and the library's own masks (some pad queries see no key at all; the kernels handle that), labels of pads -100."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def build(fix=None):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        ids = torch.randint(2, 50, (3, 9), generator=g); att = torch.ones(3, 9, dtype=torch.long); att[1, :5] = 0; att[2, :2] = 0
        batches.append(dict(input_ids=ids * att, attention_mask=att, labels=ids.masked_fill(att == 0, -100)))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
