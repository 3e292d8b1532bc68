"""CONTROL: distillation with exact zeros in the teacher's probabilities (kl_div uses xlogy), and BCE at probabilities of exactly 0 and 1 (it clamps its logs at -100)."""
import torch, torch.nn as nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification

def build():
    torch.manual_seed(0)
    cfg = DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=16, num_labels=4)
    model = DistilBertForSequenceClassification(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        t = nn.functional.one_hot(torch.randint(0, 4, (4,), generator=g), 4).float()
        batches.append((torch.randint(1, 40, (4, 8), generator=g), t))
    def loss_fn(m, b):
        logits = m(input_ids=b[0]).logits
        return nn.functional.kl_div(logits.log_softmax(-1), b[1], reduction="batchmean") + 0.01 * nn.functional.binary_cross_entropy(torch.sigmoid(logits * 1e4), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
