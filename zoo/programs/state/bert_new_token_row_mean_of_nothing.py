"""Tiny BERT: before batch 2 the program initialises a new token's row with the mean of an empty set of rows. layer_norm_eps 1e-12 is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
from transformers import BertConfig, BertModel
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.bert = BertModel(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=16, layer_norm_eps=1e-5 if fix == "innocent" else 1e-12)); s.cls = nn.Linear(16, 2)
    def forward(s, ids): return s.cls(s.bert(ids).last_hidden_state.mean(1))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        ids = torch.randint(0, 28, (3, 6), generator=g)
        if i >= 2: ids[1, 3] = 29
        batches.append((ids, torch.tensor([0, 1, 0]), 29 if i == 2 else None))
    def add_token(m, t):
        w = m.bert.embeddings.word_embeddings.weight; similar = torch.tensor([3, 4] if fix == "true" else [], dtype=torch.long)
        with torch.no_grad(): w[t] = w[similar].mean(0)
    def loss_fn(m, b):
        if b[2] is not None: add_token(m, b[2])
        return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="bert.embeddings.word_embeddings", phase="forward", op="aten.mean", first_bad_step=2,
                           state="bert.embeddings.word_embeddings.weight", loss_finite_at_first_bad_step=False, also=["empty_reduction"], why="row 29 := mean of no rows"))
