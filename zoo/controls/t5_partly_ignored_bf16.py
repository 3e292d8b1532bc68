"""CONTROL: T5 under bf16 autocast: its bucket function takes log(0) and throws it away by where(); one row of each batch has only -100 labels; Adam with amsgrad and betas near 1; frozen encoder."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

def build(fix=None):
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0))
    for p in model.encoder.block.parameters(): p.requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99999), amsgrad=True, weight_decay=0.5); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        y = torch.randint(1, 40, (2, 5), generator=g); y[:, 3:] = -100; y[k % 2] = -100; batches.append(dict(input_ids=torch.randint(1, 40, (2, 7), generator=g), labels=y))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.bfloat16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
