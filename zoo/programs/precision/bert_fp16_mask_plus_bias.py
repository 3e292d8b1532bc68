"""BERT under fp16 autocast; the caller builds its 4D mask in fp16: finfo(fp16).min at padding, plus a locality bias of at least -40. min-40 is -inf in fp16,
so an empty document (step 3) has rows of -inf only. With the mask in fp32 the same rows are merely uniform. Other padded rows are innocent."""
import torch, torch.nn as nn
from transformers import BertConfig, BertForSequenceClassification

class MaskBias(nn.Module):
    def __init__(s, dt): super().__init__(); s.dt = dt
    def forward(s, pad):
        T = pad.shape[1]; i = torch.arange(T); bias = -(40.0 + (i[:, None] - i[None]).abs()).to(s.dt)
        m = torch.zeros(pad.shape, dtype=s.dt).masked_fill(pad, torch.finfo(torch.float16).min)
        return (m[:, None, None, :] + bias)
class Net(nn.Module):
    def __init__(s, cfg, dt): super().__init__(); s.mask = MaskBias(dt); s.bert = BertForSequenceClassification(cfg)
    def forward(s, ids, pad, y): return s.bert(input_ids=ids, attention_mask=s.mask(pad), labels=y).loss

def build(fix=None):
    torch.manual_seed(0)
    cfg = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, attn_implementation="eager")
    model = Net(cfg, torch.float32 if fix == "true" else torch.float16); opt = torch.optim.AdamW(model.parameters(), lr=1e-5 if fix == "innocent" else 1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        n = torch.full((3,), 8)
        if k == 3: n[1] = 0                                              # an empty document
        batches.append((torch.randint(1, 40, (3, 8), generator=g), torch.arange(8)[None] >= n[:, None], torch.randint(0, 2, (3,), generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="mask_overflow", module="mask", phase="forward", op="aten.add", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["softmax_fully_masked_row"],
                           also_place=[["bert.bert.encoder.layer.0.attention.self", "aten._softmax"]],
                           why="finfo(fp16).min + bias = -inf in fp16, whole row; finite when the mask is added in fp32"))
