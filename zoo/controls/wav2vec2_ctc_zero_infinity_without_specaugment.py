"""CONTROL: Wav2Vec2 CTC with an infeasible transcript in batch 2 but ctc_zero_infinity=True: loss and gradients stay finite by design. SpecAugment off, one empty transcript."""
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

def build(fix=None):
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(16, 16), conv_stride=(4, 2), conv_kernel=(8, 4),
                         num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, ctc_loss_reduction="sum", ctc_zero_infinity=True, pad_token_id=0, apply_spec_augment=False))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for k in range(5):
        y = torch.full((3, 30), -100); y[:, :4] = torch.arange(1, 5)
        if k == 2: y[1, :25] = 7
        if k == 3: y[0] = -100
        batches.append(dict(input_values=torch.randn(3, 100, generator=g), labels=y))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
