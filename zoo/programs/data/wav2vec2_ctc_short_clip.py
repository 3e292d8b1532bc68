"""Wav2Vec2 with a CTC head. In batch 2 one clip was cut by the voice-activity filter: its transcript has more characters than the
encoder has frames for it, so no alignment exists and the loss is inf.
True cause: infeasible CTC alignment (arithmetic on lengths); audio and labels are both valid."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Wav2Vec2Config, Wav2Vec2Model

BLANK = 0


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = Wav2Vec2Config(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                             conv_dim=(16, 16), conv_kernel=(10, 4), conv_stride=(5, 4), num_conv_pos_embeddings=8,
                             num_conv_pos_embedding_groups=2, feat_extract_norm="layer", apply_spec_augment=False,
                             hidden_dropout=0.0, attention_dropout=0.0, layerdrop=0.0, num_feat_extract_layers=2)
        self.encoder = Wav2Vec2Model(cfg)
        self.head = nn.Linear(24, 12)

    def frames(self, n):
        return ((n - 10) // 5 + 1 - 4) // 4 + 1

    def forward(self, audio):
        return self.head(self.encoder(audio).last_hidden_state)


def build():
    torch.manual_seed(0)
    model = Recogniser()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(5)
    batches = []
    for i in range(5):
        samples = torch.tensor([400, 360, 320])
        chars = torch.tensor([8, 7, 6])
        if i == 2:
            samples[1] = 120                                  # 5 frames are left for 7 characters
        audio = torch.randn(3, 400, generator=g)
        audio = audio * (torch.arange(400)[None] < samples[:, None])
        targets = torch.randint(1, 12, (3, 8), generator=g)
        batches.append((audio, samples, targets, chars))

    def loss_fn(m, b):
        audio, samples, targets, chars = b
        logp = F.log_softmax(m(audio), dim=-1).transpose(0, 1)
        flat = torch.cat([t[:n] for t, n in zip(targets, chars)])
        return F.ctc_loss(logp, flat, m.frames(samples), chars, blank=BLANK)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ctc_infeasible_alignment", module="loss", phase="forward", op="aten._ctc_loss", first_bad_step=2))
