"""CONTROL: GPT-2 under fp16 autocast with a causal mask of finfo.min, heavy padding, a row that only sees padding (uniform, not NaN), and a
channel whose activations reach 40,000 without passing 65504."""
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = 40


def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=24, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                     activation_function="relu", attn_implementation="eager", bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(cfg)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.bias[3] = 400.0
        model.transformer.h[1].mlp.c_proj.weight[3, 2] = 100.0      # 400 * 100 = 40,000 in one channel
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        ids = torch.randint(1, VOCAB, (3, 10), generator=g)
        mask = torch.ones_like(ids)
        mask[1, :4] = 0                                             # left padding
        batches.append((ids, mask))

    def loss_fn(m, b):
        ids, mask = b
        logits = m(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100).flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
