"""Pointer-generator with forbidden tokens at -inf and a hand-written label smoothing whose weight is annealed 0.1 -> 0.0 (a Python number).
True cause: 0.0 * inf: while no token was forbidden the smooth term was finite; in batch 5 the mask has -inf and the weight is exactly 0."""
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

class Annealed:
    def __init__(s, hi, n): s.hi, s.n, s.k = hi, n, 0
    def __call__(s): s.k += 1; return max(0.0, s.hi * (1 - (s.k - 1) / s.n))

def build():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., bos_token_id=0, eos_token_id=0))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        ids = torch.randint(2, 20, (2, 9), generator=g)
        ban = torch.zeros(20, dtype=torch.bool); ban[1] = i == 5        # token 1 never occurs in the text
        batches.append((ids, ban))
    sched = Annealed(0.1, 4)                                             # exactly 0.0 from the fifth call on
    def smoothed(logits, y, w):
        lp = logits.log_softmax(-1)
        nll = -lp.gather(-1, y[..., None]).squeeze(-1).mean()
        return (1 - w) * nll + w * (-lp.mean(-1)).mean()
    def loss_fn(m, b):
        ids, ban = b
        logits = m(ids).logits[:, :-1].masked_fill(ban, float("-inf"))
        return smoothed(logits, ids[:, 1:], sched())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", where="loss_fn", phase="forward", op="aten.mul", first_bad_step=5, grads_finite=True))
