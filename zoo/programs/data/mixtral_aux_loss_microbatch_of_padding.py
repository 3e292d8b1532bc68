"""Mixtral with gradient accumulation over two micro-batches. The second micro-batch of step 2 is only padding (the shard was
exhausted). The language-model loss is guarded (sum / max(n, 1)), all labels -100 is harmless; but transformers' own
load_balancing_loss_func divides by the number of real tokens, which is 0.
True cause: a mean over zero tokens in the auxiliary loss. TRAP: the -100 labels are not guilty, the attention mask is finite."""
import torch
import torch.nn.functional as F
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

VOCAB = 40


def lm_loss(logits, labels):
    flat = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum")
    return flat / (labels[:, 1:] != -100).sum().clamp(min=1)


def build():
    torch.manual_seed(0)
    cfg = MixtralConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32,
                        output_router_logits=True, attn_implementation="eager")
    model = MixtralForCausalLM(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(4)
    batches = []
    for i in range(4):
        micro = []
        for j in range(2):
            ids = torch.randint(1, VOCAB, (2, 8), generator=g)
            mask = torch.ones_like(ids)
            mask[0, 6:] = 0
            if i == 2 and j == 1:
                mask[:] = 0
            micro.append({"input_ids": ids * mask, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
        batches.append(micro)

    def loss_fn(m, micro):
        total = 0.0
        for b in micro:
            logits, router = forward(m, b)
            aux = load_balancing_loss_func(router, 4, 2, b["attention_mask"])
            total = total + (lm_loss(logits, b["labels"]) + 0.01 * aux) / len(micro)
        return total

    def forward(m, b):
        hidden = m.model(input_ids=b["input_ids"], attention_mask=b["attention_mask"], use_cache=False, output_router_logits=True)
        return m.lm_head(hidden.last_hidden_state), hidden.router_logits

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.div", first_bad_step=2, trap=True,
                           also=dict(cause=["division_by_zero"])))
