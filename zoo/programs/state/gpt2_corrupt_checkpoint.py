"""GPT-2 continued from a checkpoint in which one tensor of the second block is NaN (the file was written after the run had gone bad).
True cause: the weights are non-finite when loaded."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    saved = GPT2LMHeadModel(cfg).state_dict(); saved["transformer.h.1.mlp.c_fc.weight"][3] = float("nan")
    model = GPT2LMHeadModel(cfg); model.load_state_dict(saved); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randint(0, 48, (2, 10), generator=g) for _ in range(3)]
    def loss_fn(m, b): return m(input_ids=b, labels=b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", also=["uninitialised_memory"], module="transformer.h.1.mlp.c_fc", phase="forward", op="state", first_bad_step=0))
