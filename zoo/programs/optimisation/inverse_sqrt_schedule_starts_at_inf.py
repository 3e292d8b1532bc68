"""DistilBERT with an inverse square root schedule computed with numpy from the step number, which starts at 0: the first rate is Inf.
True cause: the learning rate itself; loss and gradients are finite, the first update is not."""
import numpy as np, torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

def rate(step, base=1e-3):
    with np.errstate(divide="ignore"): return float(base * np.float64(step) ** -0.5)

def build():
    torch.manual_seed(0)
    cfg = DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=16, num_labels=3)
    model = DistilBertForSequenceClassification(cfg); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(i, torch.randint(1, 40, (4, 8), generator=g), torch.randint(0, 3, (4,), generator=g)) for i in range(4)]
    def loss_fn(m, b):
        for group in opt.param_groups: group["lr"] = rate(b[0])
        return m(input_ids=b[1], labels=b[2]).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=["resume_lr_jump"], module="optimizer", phase="optimizer", op="aten.add_", first_bad_step=0))
