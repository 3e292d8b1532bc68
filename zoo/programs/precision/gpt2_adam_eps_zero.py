"""GPT-2 with Adam(eps=0) ("to be scale invariant"): positions that no sequence reaches have a gradient of exactly 0, and the update is 0/0.
True cause: the divisor sqrt(v) + eps of Adam is exactly zero; loss and gradients are finite."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=0.0)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 48, (4, 10), generator=g) for _ in range(3)]
    def loss_fn(m, b): return m(input_ids=b, labels=b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", also=["division_by_zero"], module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=0, param="transformer.wpe.weight"))
