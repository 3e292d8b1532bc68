"""GPT-2 on packed documents: a block-diagonal 4D mask of -inf; the padding tokens at the end belong to no document and see no key.
Threads: pytorch/pytorch#41508, huggingface/transformers#27050.
True cause: softmax over a row in which every key is masked (only the last packed batch has padding)."""
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

def block_mask(doc):
    same = (doc[:, :, None] == doc[:, None, :]) & (doc[:, :, None] > 0)
    t = doc.shape[1]; causal = torch.ones(t, t, dtype=torch.bool).tril()
    return torch.zeros(doc.shape[0], 1, t, t).masked_fill(~(same & causal)[:, None], float("-inf"))

def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=2, attn_implementation="eager", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        ids = torch.randint(0, 48, (2, 12), generator=g); doc = torch.ones(2, 12, dtype=torch.long); doc[:, 5:] = 2
        if i == 3: doc[1, 10:] = 0                      # 0 = padding behind the last document
        batches.append(dict(ids=ids, doc=doc))
    def loss_fn(m, b):
        out = m(input_ids=b["ids"], attention_mask=block_mask(b["doc"])).logits
        y = b["ids"].masked_fill(b["doc"] == 0, -100)
        return nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), y[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="transformer.h.0.attn", phase="forward", op="aten._softmax", first_bad_step=3))
