"""CONTROL: Wav2Vec2ForCTC with an impossible transcript in batch 2 and ctc_zero_infinity=True: the sample gives no loss and no gradient, everything is finite."""
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

def build():
    torch.manual_seed(0)
    cfg = Wav2Vec2Config(vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8), conv_stride=(4, 4),
                         conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, pad_token_id=0,
                         ctc_loss_reduction="sum", ctc_zero_infinity=True, mask_time_prob=0.0, layerdrop=0.0, hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0,
                         activation_dropout=0.0, final_dropout=0.0)
    model = Wav2Vec2ForCTC(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        wav = torch.randn(3, 200, generator=g)                        # -> 12 frames
        lab = torch.randint(1, 12, (3, 5), generator=g)
        lab = torch.cat([lab, torch.full((3, 4), -100)], 1)
        if i == 2: lab[1] = torch.tensor([4, 4, 4, 4, 4, 4, 4, 4, -100])   # "oooooooo": 8 <= 12 frames, yet 15 are needed
        batches.append(dict(input_values=wav, labels=lab))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
