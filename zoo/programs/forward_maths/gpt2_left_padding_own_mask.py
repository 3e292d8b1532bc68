"""GPT-2 fine-tuning, eager attention, with a home-made 4D mask of -inf (causal AND not padding). Batches 0-2 have no padding; batch 3 is
LEFT padded: the pad queries at the left see no key at all, their softmax row is all -inf. Labels of pads are -100 (innocent, correct)."""
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

def build(fix=None):
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_implementation="eager", bos_token_id=1, eos_token_id=1)
    model = GPT2LMHeadModel(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-5 if fix == "innocent" else 1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        ids = torch.randint(2, 50, (3, 9), generator=g); att = torch.ones(3, 9, dtype=torch.long)
        if k == 3: att[1, :4] = 0; ids[1, :4] = 0
        batches.append(dict(input_ids=ids, attention_mask=att))
    def loss_fn(m, b):
        att = b["attention_mask"].bool(); T = att.shape[1]
        ok = torch.ones(T, T, dtype=torch.bool).tril()[None] & att[:, None, :]
        if fix == "true": ok = ok | torch.eye(T, dtype=torch.bool)[None]
        mask = torch.zeros(ok.shape).masked_fill(~ok, float("-inf"))[:, None]
        return m(input_ids=b["input_ids"], attention_mask=mask, labels=b["input_ids"].masked_fill(~att, -100)).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="transformer.h.0.attn", phase="forward", op="aten._softmax", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="left-pad queries have every key masked with -inf"))
