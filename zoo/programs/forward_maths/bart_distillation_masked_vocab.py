"""Distilling into BART: from step 3 teacher and student logits of the 5 reserved tokens are masked with -inf. Soft cross-entropy p_t * log p_s is 0 * -inf there.
The -inf mask alone is fine (the hard-label loss uses it too: innocent)."""
import torch, torch.nn as nn
from transformers import BartConfig, BartForConditionalGeneration

class KD(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, st, te):
        p = te.softmax(-1); lq = st.log_softmax(-1)
        if s.fix == "true": lq = lq.masked_fill(p == 0, 0.0)
        return -(p * lq).sum(-1).mean()
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.kd = KD(fix)
        s.bart = BartForConditionalGeneration(BartConfig(vocab_size=40, max_position_embeddings=16, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2))
    def forward(s, x, y): return s.bart(input_ids=x, labels=y).logits

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(3, 35, (2, 7), generator=g), torch.randint(3, 35, (2, 5), generator=g), torch.randn(2, 5, 40, generator=g), k) for k in range(6)]
    def loss_fn(m, b):
        x, y, te, k = b; st = m(x, y)
        if k >= 3:
            r = torch.zeros(40, dtype=torch.bool); r[35:] = True; st = st.masked_fill(r, float("-inf")); te = te.masked_fill(r, float("-inf"))
        hard = 0.0 if fix == "innocent" else nn.functional.cross_entropy(st.flatten(0, 1), y.flatten())
        return hard + m.kd(st, te)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="kd", phase="forward", op="aten.mul", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="teacher probability 0 times student log-probability -inf at the masked vocabulary"))
