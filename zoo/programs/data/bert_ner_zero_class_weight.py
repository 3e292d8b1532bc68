"""BERT token classification with class weights; the class "O" got weight 0. One batch has no entity at all: the weighted mean divides by 0.
True cause: the sum of the weights of all valid targets is zero."""
import torch, torch.nn as nn
from transformers import BertConfig, BertForTokenClassification

def build():
    torch.manual_seed(0)
    cfg = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, num_labels=3)
    model = BertForTokenClassification(cfg); opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    crit = nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 2.5]))
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        ids = torch.randint(1, 40, (3, 10), generator=g); tags = torch.randint(0, 3, (3, 10), generator=g); tags[:, -2:] = -100; tags[:, 0] = 1
        if i == 5: tags = torch.where(tags > 0, 0, tags)
        batches.append(dict(input_ids=ids, tags=tags))
    def loss_fn(m, b): return crit(m(input_ids=b["input_ids"]).logits.view(-1, 3), b["tags"].view(-1))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=["division_by_zero"], module="loss", phase="forward", op="aten.nll_loss_forward", first_bad_step=5))
