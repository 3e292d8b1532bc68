"""Whisper fine-tuning with an own log-mel front end: log10 of the mel power without the usual clamp, and a clip that begins with digital silence.
True cause: log of an exact zero."""
import torch, torch.nn as nn
from transformers import WhisperConfig, WhisperForConditionalGeneration

class Asr(nn.Module):
    def __init__(s):
        super().__init__()
        cfg = WhisperConfig(vocab_size=50, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                            encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=16, max_target_positions=16, pad_token_id=1, bos_token_id=2, eos_token_id=3,
                            decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None, dropout=0.0)
        s.whisper = WhisperForConditionalGeneration(cfg); s.register_buffer("bank", torch.rand(9, 8, generator=torch.Generator().manual_seed(5)))
    def features(s, audio):
        frames = audio.unfold(1, 16, 16)                                   # (B, 32, 16)
        power = torch.fft.rfft(frames).abs() ** 2
        mel = (power @ s.bank).transpose(1, 2)
        mel = torch.log10(mel)
        return (mel + 4.0) / 4.0
    def forward(s, audio, labels): return s.whisper(input_features=s.features(audio), labels=labels).loss

def build():
    torch.manual_seed(0); model = Asr(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        a = torch.randn(2, 512, generator=g);
        if i == 2: a[0, :64] = 0
        batches.append((a, torch.randint(4, 50, (2, 6), generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log10", first_bad_step=2))
