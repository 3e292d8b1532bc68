"""Mistral under fp16 autocast with a z-loss: logsumexp(logits)^2 summed over all tokens. The head's logits are about 30, so each term is about
1,000; logits stay half, and with the long batch of step 2 the sum passes 65504. The cross-entropy is computed in fp32 and is fine.
True cause: a loss term is reduced in half precision."""
import torch
import torch.nn.functional as F
from transformers import MistralConfig, MistralForCausalLM

VOCAB = 32


def z_loss(logits):
    return torch.logsumexp(logits, dim=-1).pow(2).sum()


def build():
    torch.manual_seed(0)
    cfg = MistralConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, max_position_embeddings=128, sliding_window=16, attn_implementation="eager",
                        tie_word_embeddings=False)
    model = MistralForCausalLM(cfg)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    drift = torch.tensor(30.0, dtype=torch.float16)      # the output bias of the pretrained head: all logits sit near 30
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, VOCAB, (4, n), generator=g) for n in (6, 6, 60, 60)]

    def loss_fn(m, x):
        logits = m(input_ids=x, use_cache=False).logits + drift
        ce = F.cross_entropy(logits.float()[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))
        return ce + 1e-4 * z_loss(logits) / x.numel()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.sum", first_bad_step=2, grads_finite=True,
                           also=["fp16_forward_overflow"]))
