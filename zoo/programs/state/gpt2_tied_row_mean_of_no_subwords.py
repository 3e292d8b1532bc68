"""GPT-2 with tied embeddings. At step 3 the program fills the row of a new token with the mean of the rows of its sub-words - an empty list: mean of nothing
is NaN, copied into wte.weight, which is also the lm_head. The token itself never occurs in the data. At step 1 it does the same properly (innocent)."""
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

def build(fix=None):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=52, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    subwords = {1: (50, [4, 9, 17]), 3: (51, [] if fix != "true" else [5, 6])}
    if fix == "innocent": del subwords[1]
    batches = [(torch.randint(2, 50, (2, 8), generator=g), k) for k in range(6)]
    def loss_fn(m, b):
        if b[1] in subwords:
            row, parts = subwords[b[1]]; w = m.transformer.wte.weight
            with torch.no_grad(): w[row].copy_(w[torch.tensor(parts, dtype=torch.long)].mean(0))
        return m(input_ids=b[0], labels=b[0]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="transformer.wte", phase="state", op="aten.copy_", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["empty_reduction"],
                           also_place=[["loss", "aten.mean"], ["lm_head", "aten.mm"]], also_phase=["forward"], state="transformer.wte.weight[51]",
                           why="the program wrote the mean of an empty selection into a (tied) parameter row; the row shows through lm_head"))
