"""Mixtral with a home-made router-entropy bonus -(p*log p) on softmax probabilities. One token's router logits differ by >200, so p is exactly
0 for the others: log(0), then 0*-inf. The built-in load-balancing loss is innocent."""
import torch, torch.nn as nn
from transformers import MixtralConfig, MixtralForCausalLM

def build(fix=None):
    torch.manual_seed(0)
    cfg = MixtralConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, num_local_experts=4,
                        num_experts_per_tok=2, max_position_embeddings=32, output_router_logits=True, router_aux_loss_coef=0.0 if fix == "innocent" else 0.02)
    model = MixtralForCausalLM(cfg)
    with torch.no_grad():                                               # channel 3 marks the code token 39; expert 1 is its specialist
        l = model.model.layers[0]; model.model.embed_tokens.weight[:, 3] = 0; model.model.embed_tokens.weight[39] = 0; model.model.embed_tokens.weight[39, 3] = 5.0
        l.self_attn.o_proj.weight[3] = 0
        gate = [p for n, p in model.named_parameters() if n.endswith("gate.weight")][0]; gate[:, 3] = 0; gate[1, 3] = 80.0
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        ids = torch.randint(0, 39, (2, 8), generator=g)
        if k == 3: ids[0, 5] = 39
        batches.append(ids)
    def loss_fn(m, ids):
        o = m(input_ids=ids, labels=ids); rl = torch.cat([r.reshape(-1, 4) for r in o.router_logits])
        if fix == "true": lp = rl.log_softmax(-1); ent = -(lp.exp() * lp).sum(-1).mean()
        else: p = rl.softmax(-1); ent = -(p * torch.log(p)).sum(-1).mean()
        return o.loss - 0.001 * ent
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["zero_times_inf"],
                           why="router probability underflows to exactly 0 in fp32; log_softmax cures it"))
