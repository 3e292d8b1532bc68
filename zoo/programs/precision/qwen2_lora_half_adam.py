"""Qwen2 with LoRA adapters kept in float16 and trained by plain Adam. B starts at zero, so in the first step the gradient of A is exactly
0: sqrt(v) is 0, eps = 1e-8 is 0 in float16, and the update of A is 0/0.
True cause: Adam's eps underflows in the half state. Loss and gradients are finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB = 40


class LoraLinear(nn.Module):
    def __init__(self, base, r=2, alpha=4):
        super().__init__()
        self.base, self.scale = base, alpha / r
        self.A = nn.Parameter((torch.randn(r, base.in_features) * 0.1).half())
        self.B = nn.Parameter(torch.zeros(base.out_features, r, dtype=torch.float16))

    def forward(self, x):
        return self.base(x) + self.scale * (x.half() @ self.A.t() @ self.B.t()).float()


def add_lora(model):
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LoraLinear(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LoraLinear(layer.self_attn.v_proj)
    return model


def build():
    torch.manual_seed(0)
    cfg = Qwen2Config(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager")
    model = add_lora(Qwen2ForCausalLM(cfg))
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, VOCAB, (3, 10), generator=g) for _ in range(3)]

    def loss_fn(m, x):
        logits = m(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, grads_finite=True, param="model.layers.0.self_attn.q_proj.A"))
