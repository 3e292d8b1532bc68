"""GPT-2 (tied head): before batch 2 the loader registers a new token and writes the mean of an EMPTY list of related rows into
its embedding row: the row is NaN. The batch, the mask and the optimizer are innocent."""
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0.)
    model = GPT2LMHeadModel(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def register_token(row, related):
        with torch.no_grad():
            w = model.transformer.wte.weight
            w[row] = w[torch.tensor(related, dtype=torch.long)].mean(0)
    def stream():
        g = torch.Generator().manual_seed(7)
        for i in range(6):
            if i == 1: register_token(38, [4, 9, 11])
            if i == 2: register_token(39, [])                # no related words were found
            yield dict(input_ids=torch.randint(0, 30, (2, 12), generator=g))
    def loss_fn(m, b): return m(input_ids=b["input_ids"], labels=b["input_ids"]).loss
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="transformer.wte", phase="forward", op="aten.empty", first_bad_step=2,
                           loss_finite_at_first_bad_step=False, state="transformer.wte.weight", also_module=["lm_head"], op_note="op not scored (state fault)",
                           also=["empty_reduction"], why="The program itself copied NaN (mean of nothing) into one embedding row between steps 1 and 2."))
