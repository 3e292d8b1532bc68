"""Wav2Vec2 CTC: one transcript is longer than the number of frames (ctc_zero_infinity is off, as by default).
Threads: huggingface/transformers#9620, #15930.
True cause: no alignment exists, the loss is Inf."""
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

def build():
    torch.manual_seed(0)
    cfg = Wav2Vec2Config(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8), conv_kernel=(10, 3), conv_stride=(5, 4),
                         num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, mask_feature_prob=0.0, layerdrop=0.0,
                         hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0, final_dropout=0.0, ctc_loss_reduction="mean", pad_token_id=0)
    model = Wav2Vec2ForCTC(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randn(2, 240, generator=g); y = torch.randint(1, 20, (2, 14), generator=g); y[:, 4:] = -100
        if i == 3: y[1] = torch.arange(1, 15)                  # 14 letters, 11 frames
        batches.append((x, y))
    def loss_fn(m, b): return m(input_values=b[0], labels=b[1]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=3))
