"""T5 seq2seq fine-tuning under bf16 autocast (innocent: fp32 does the same). One batch has only empty targets: every label is -100 and the mean
is over zero tokens. A row of an EARLIER batch is wholly -100 too, which is harmless."""
import torch, torch.nn as nn
from transformers import T5Config, T5ForConditionalGeneration

def build(fix=None):
    torch.manual_seed(0)
    cfg = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0)
    model = T5ForConditionalGeneration(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        x = torch.randint(1, 40, (2, 7), generator=g); y = torch.randint(1, 40, (2, 5), generator=g); y[:, 3:] = -100
        if k == 1: y[0] = -100
        if k == 3: y[:] = -100
        batches.append(dict(input_ids=x, labels=y))
    def loss_fn(m, b):
        if fix == "true" and (b["labels"] == -100).all(): return m(**{**b, "labels": b["labels"].clamp(min=0)}).logits.sum() * 0.0
        return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None if fix == "innocent" else torch.bfloat16,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.nll_loss_forward", first_bad_step=3, loss_finite_at_first_bad_step=False, grads_finite=True,
                           why="cross_entropy(mean) over zero valid labels inside the model's own forward"))
