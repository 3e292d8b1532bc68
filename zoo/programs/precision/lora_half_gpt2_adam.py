"""LoRA on a half-precision GPT-2 with torch's Adam: lora_B starts at 0, so the gradient of lora_A is exactly 0 in the first step: 0 / (sqrt(0) + 0).
True cause: Adam's eps 1e-8 is 0 in fp16. Loss and every gradient are finite."""
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

class LoRA(nn.Module):
    def __init__(s, base, r=4):
        super().__init__(); s.base = base; n_in, n_out = base.weight.shape
        s.lora_A = nn.Parameter(torch.randn(n_in, r) * 0.05); s.lora_B = nn.Parameter(torch.zeros(r, n_out))
    def forward(s, x): return s.base(x) + x @ s.lora_A @ s.lora_B * 2.0

def build():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., bos_token_id=0, eos_token_id=0))
    model.requires_grad_(False)
    for h in model.transformer.h: h.attn.c_attn = LoRA(h.attn.c_attn)
    model.half(); opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 32, (2, 10), generator=g) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b).logits[:, :-1].flatten(0, 1).float(), b[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=0, loss_finite_at_first_bad_step=True))
