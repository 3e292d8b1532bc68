"""Llama under fp16 autocast. At step 3 the warm-up ends and lr jumps x100 - and the same batch holds the first <think> token (id 60), whose
massive activation leaves layer 1's down_proj at ~5e5 > 65504. In fp32 or bf16 with the same jump all is finite."""
import torch, torch.nn as nn
from transformers import LlamaConfig, LlamaForCausalLM

def build(fix=None):
    torch.manual_seed(0)
    cfg = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False)
    model = LlamaForCausalLM(cfg)
    with torch.no_grad():                                               # channel 0 is the "massive activation" channel; only token 60 uses it
        L = model.model.layers; model.model.embed_tokens.weight[:, 0] = 0; model.model.embed_tokens.weight[60] = 0; model.model.embed_tokens.weight[60, 0] = 4.0
        for l in L: l.self_attn.o_proj.weight[0] = 0; l.self_attn.v_proj.weight[:, 0] = 0; l.mlp.down_proj.weight[0] = 0
        for n in ("gate_proj", "up_proj"): w = getattr(L[1].mlp, n).weight; w[0] = 0; w[0, 0] = 25.0
        L[1].mlp.down_proj.weight[5, 0] = 25.0
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        ids = torch.randint(0, 60, (2, 8), generator=g)
        if k == 3: ids[1, 4] = 60
        batches.append((ids, k))
    def loss_fn(m, b):
        for q in opt.param_groups: q["lr"] = 1e-3 if b[1] >= 3 and fix != "innocent" else 1e-5
        return m(input_ids=b[0], labels=b[0]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.bfloat16 if fix == "true" else torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="model.layers.1.mlp.down_proj", phase="forward", op="aten.mm", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="activation above 65504 of token 60; the lr jump takes effect only after this forward"))
