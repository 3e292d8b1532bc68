"""Wav2Vec2 CTC: the transcript of sample 1 in batch 3 is not longer than the frames, but has repeats ("aaaa...") that need blanks between: infeasible.
Another sample uses exactly as many frames as there are (no repeats: feasible, innocent)."""
import torch, torch.nn as nn
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

def build(fix=None):
    torch.manual_seed(0)
    cfg = Wav2Vec2Config(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(16, 16), conv_stride=(4, 2), conv_kernel=(8, 4),
                         num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, ctc_loss_reduction="mean", ctc_zero_infinity=False, pad_token_id=0, apply_spec_augment=False)
    model = Wav2Vec2ForCTC(cfg); n = int(model._get_feat_extract_output_lengths(torch.tensor(100)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        y = torch.full((3, n), -100); y[:, :4] = torch.arange(1, 5)
        if k == 3:
            if fix != "innocent": y[0] = torch.arange(n) % 18 + 1        # n labels in n frames, no repeats: feasible
            y[1, :n - 2] = 7 if fix != "true" else torch.arange(n - 2) % 18 + 1   # shorter, but n-3 repeats
        batches.append(dict(input_values=torch.randn(3, 100, generator=g), labels=y))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=3, loss_finite_at_first_bad_step=False, bad_sample=1,
                           why="needs length + repeats frames; sample 0 (length == frames, no repeats) is feasible"))
