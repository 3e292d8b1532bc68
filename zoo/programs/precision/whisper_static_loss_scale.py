"""Whisper under fp16 autocast with a hand-made static loss scale of 2**17 (copied from an old apex recipe) instead of a GradScaler.
With full transcripts the mean spreads the scale over many tokens; in step 3 only one label is left (the rest is -100), its
logit gradient is about -128,000 and does not fit in half.
True cause: the loss scale. With scale 1 the gradients of the same step are finite; the forward is finite, the labels are legal."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import WhisperConfig, WhisperForConditionalGeneration

VOCAB, SCALE = 50, 2.0 ** 17


def unscale(optimizer, *args):
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.div_(SCALE)


def build():
    torch.manual_seed(0)
    cfg = WhisperConfig(vocab_size=VOCAB, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=10,
                        max_target_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
                        suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager")
    model = WhisperForConditionalGeneration(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    opt.register_step_pre_hook(unscale)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        labels = torch.randint(3, VOCAB, (4, 8), generator=g)
        dec = torch.cat([torch.ones(4, 1, dtype=torch.long), labels[:, :-1]], 1)
        if i == 3:
            labels[:] = -100
            labels[2, 0] = 17
        batches.append((torch.randn(4, 8, 20, generator=g), dec, labels))

    def loss_fn(m, b):
        mel, dec, labels = b
        logits = m(input_features=mel, decoder_input_ids=dec, use_cache=False).logits.float()
        return SCALE * F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=3,
                           node="ToCopyBackward0", loss_finite_at_first_bad_step=True))
