"""Whisper fine-tuning with a home-made log-mel front end: log10(mel) without a floor. One clip is digital silence: the mel power is exactly 0. Another clip in
the same batch clips loudly (amplitude 30 instead of 1): innocent."""
import torch, torch.nn as nn
from transformers import WhisperConfig, WhisperForConditionalGeneration

class LogMel(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.fix = fix; s.register_buffer("fb", torch.rand(8, 17, generator=torch.Generator().manual_seed(3))); s.register_buffer("win", torch.hann_window(32))
    def forward(s, wav):
        S = torch.stft(wav, 32, 16, window=s.win, return_complex=True).abs() ** 2; mel = s.fb @ S
        if s.fix == "true": mel = mel.clamp(min=1e-10)
        x = torch.log10(mel)[..., :32]; return (x + 4) / 4
class ASR(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.mel = LogMel(fix)
        s.whisper = WhisperForConditionalGeneration(WhisperConfig(vocab_size=40, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=16, max_target_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1))
    def forward(s, wav, y): return s.whisper(input_features=s.mel(wav), labels=y).loss

def build(fix=None):
    torch.manual_seed(0); model = ASR(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        w = 0.3 * torch.randn(3, 512, generator=g)
        if k == 3:
            w[2] = 0.0
            if fix != "innocent": w[0] *= 100.0
        batches.append((w, torch.randint(3, 40, (3, 5), generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="mel", phase="forward", op="aten.log10", first_bad_step=3, loss_finite_at_first_bad_step=False, bad_sample=2,
                           why="log10 of exactly zero power (digital silence); the loud clip is finite"))
