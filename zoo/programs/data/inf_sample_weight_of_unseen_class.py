"""DeBERTa-v2 classifier with sample weights 1 / class frequency, computed when the data set was exported. A class that had no sample in
the export split got the weight inf; one sample of batch 2 carries it.
True cause: Inf in the batch (field weight)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification


def build():
    torch.manual_seed(0)
    cfg = DebertaV2Config(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                          max_position_embeddings=24, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
                          hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pooler_hidden_size=24, pooler_dropout=0.0, num_labels=4)
    model = DebertaV2ForSequenceClassification(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(1)
    freq = torch.tensor([0.5, 0.3, 0.2, 0.0])
    batches = []
    for i in range(5):
        y = torch.randint(0, 3, (4,), generator=g)
        if i == 2:
            y[1] = 3
        batches.append({"text": {"input_ids": torch.randint(1, 50, (4, 8), generator=g), "attention_mask": torch.ones(4, 8, dtype=torch.long)},
                        "label": y, "weight": 1.0 / freq[y]})

    def loss_fn(m, b):
        logits = m(**b["text"]).logits
        return (F.cross_entropy(logits, b["label"], reduction="none") * b["weight"]).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=2, bad_path="weight[1]"))
