"""BERT that regresses a 3-D coordinate per residue: per-token distance sqrt(sum(diff^2)), then times the padding mask.
True cause: padded positions have prediction*mask == target == 0, sqrt'(0) is infinite, and the mask product sends it 0: 0/0 in backward. Loss finite."""
import torch, torch.nn as nn
from transformers import BertConfig, BertModel

class Folder(nn.Module):
    def __init__(s):
        super().__init__()
        s.bert = BertModel(BertConfig(vocab_size=24, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
                                      hidden_dropout_prob=0., attention_probs_dropout_prob=0.), add_pooling_layer=False)
        s.xyz = nn.Linear(16, 3)
    def forward(s, ids, mask): return s.xyz(s.bert(ids, attention_mask=mask).last_hidden_state) * mask[..., None]

def masked_rmsd(p, t, mask):
    d = (p - t).pow(2).sum(-1).sqrt()
    return (d * mask).sum() / mask.sum()

def build():
    torch.manual_seed(0); model = Folder(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        mask = torch.ones(3, 10)
        if i == 2: mask[1, 7:] = 0                                      # until here all chains were cropped to the same length
        batches.append(dict(ids=torch.randint(1, 24, (3, 10), generator=g), mask=mask, xyz=torch.randn(3, 10, 3, generator=g) * mask[..., None]))
    def loss_fn(m, b): return masked_rmsd(m(b["ids"], b["mask"]), b["xyz"], b["mask"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=["singular_gradient_at_zero"], module="loss", where="loss_fn", phase="backward", op="aten.sqrt", also_op=["aten.div"],
                           first_bad_step=2, loss_finite_at_first_bad_step=True))
