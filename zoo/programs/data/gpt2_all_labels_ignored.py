"""Tiny GPT-2: batch 2 has every label -100. The wholly padded row (attention_mask 0) in each batch is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel
def build(fix=None):
    torch.manual_seed(0); model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        ids = torch.randint(0, 30, (3, 8), generator=g); am = torch.ones(3, 8, dtype=torch.long); lab = ids.clone()
        if fix != "innocent": am[1] = 0; lab[1] = -100
        if i == 2: lab[:] = -100
        if i == 2 and fix == "true": lab[0] = ids[0]
        batches.append(dict(input_ids=ids, attention_mask=am, labels=lab))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(**b).loss, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.nll_loss_forward", first_bad_step=2, grads_finite=True,
                           loss_finite_at_first_bad_step=False, also=[], why="cross entropy over zero tokens"))
