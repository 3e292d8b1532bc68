"""GPT-2 trained on packed documents with a hand-made block-diagonal mask. The packer left an empty slot in the row of batch 3:
the separator position belongs to no document, so it may attend to nothing and its softmax row is all -inf.
True cause: a fully masked attention row. The -inf mask itself, used in all batches, is fine; the separator's label is ignored."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, T = 48, 12


def block_mask(doc_ids):
    same = doc_ids[:, :, None] == doc_ids[:, None, :]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    allowed = same & causal & (doc_ids >= 0)[:, None, :]
    return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[:, None]


def pack(lengths):
    ids = []
    for d, n in enumerate(lengths):
        ids += [d] * n
    return ids + [len(lengths)] * (T - len(ids))


def build():
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=VOCAB, n_positions=T, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                     attn_pdrop=0.0, attn_implementation="eager", bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(7)
    batches = []
    for i in range(6):
        tokens = torch.randint(1, VOCAB, (2, T), generator=g)
        docs = torch.tensor([pack([5, 4, 3]), pack([2, 7, 3])])
        labels = tokens.clone()
        if i == 3:
            docs[1, 2] = -1          # separator slot that belongs to no document
            labels[1, 2] = -100
        batches.append({"input_ids": tokens, "doc_ids": docs, "labels": labels})

    def loss_fn(m, b):
        out = m(input_ids=b["input_ids"], attention_mask=block_mask(b["doc_ids"]), use_cache=False)
        logits, labels = out.logits[:, :-1], b["labels"][:, 1:]
        return F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="transformer.h.0.attn", phase="forward", op="aten._softmax",
                           first_bad_step=3))
