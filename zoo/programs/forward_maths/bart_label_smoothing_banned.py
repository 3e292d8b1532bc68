"""BART, whose language tokens are banned with -inf logits, trained with label_smoothing=0.1: the smoothed target gives each banned token a weight.
Threads: fairseq and trl on label smoothing with masked vocabularies.
True cause: a soft target multiplied by a log-probability of -inf; with hard labels the loss is finite."""
import torch, torch.nn as nn
from transformers import BartConfig, BartForConditionalGeneration

def build():
    torch.manual_seed(0)
    cfg = BartConfig(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
                     max_position_embeddings=16, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
    model = BartForConditionalGeneration(cfg); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    banned = torch.zeros(40, dtype=torch.bool); banned[35:] = True
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(3, 30, (2, 8), generator=g), torch.randint(3, 30, (2, 6), generator=g), i >= 2) for i in range(4)]
    def loss_fn(m, b):
        src, tgt, smooth = b                            # smoothing begins with the second phase of the recipe
        logits = m(input_ids=src, decoder_input_ids=tgt[:, :-1]).logits.masked_fill(banned, float("-inf"))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), label_smoothing=0.1 if smooth else 0.0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.sum", also_op=["aten.neg", "aten.mean", "aten._log_softmax", "aten.mul"], first_bad_step=2))
