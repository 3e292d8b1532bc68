"""BART for constrained generation: tokens outside the allowed set get the logit -inf, and label smoothing spreads its mass over the
allowed tokens only, so the soft target of a forbidden token is exactly 0. The loss is written as -(target * logp).sum(): 0 * -inf.
The constraint is switched on from step 2.
True cause: zero times inf in the soft-target product."""
import torch
import torch.nn as nn
from transformers import BartConfig, BartForConditionalGeneration

VOCAB = 36


def soft_targets(labels, allowed, eps=0.1):
    t = eps * allowed / allowed.sum(-1, keepdim=True)
    return t.expand(*labels.shape, -1).scatter_add(-1, labels[..., None], torch.full((*labels.shape, 1), 1 - eps))


def smoothed_loss(logits, labels, allowed):
    if not bool(allowed.all()):
        logits = logits.masked_fill(~allowed, float("-inf"))
    logp = logits.log_softmax(-1)
    return -(soft_targets(labels, allowed.float()) * logp).sum(-1).mean()


def build():
    torch.manual_seed(0)
    cfg = BartConfig(vocab_size=VOCAB, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                     encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=20, dropout=0.0, pad_token_id=1, bos_token_id=0,
                     eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
    model = BartForConditionalGeneration(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        allowed = torch.ones(VOCAB, dtype=torch.bool)
        if i >= 2:
            allowed[25:] = False
        batches.append({"src": torch.randint(3, VOCAB, (3, 9), generator=g), "tgt": torch.randint(3, 25, (3, 6), generator=g), "allowed": allowed})

    def loss_fn(m, b):
        dec = torch.cat([torch.full((3, 1), 2), b["tgt"][:, :-1]], 1)
        logits = m(input_ids=b["src"], decoder_input_ids=dec, use_cache=False).logits
        return smoothed_loss(logits, b["tgt"], b["allowed"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=2, grads_finite=True))
