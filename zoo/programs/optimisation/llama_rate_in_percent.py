"""A linear probe on frozen Llama features, SGD with a learning rate of 3000 (meant: 3e-3): the squared error grows by the same factor at each step until it overflows.
True cause: the learning rate."""
import torch, torch.nn as nn
from transformers import LlamaConfig, LlamaModel

class Probe(nn.Module):
    def __init__(s):
        super().__init__(); s.body = LlamaModel(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16)); s.head = nn.Linear(16, 1)
        for p in s.body.parameters(): p.requires_grad_(False)
    def forward(s, ids): return s.head(s.body(input_ids=ids).last_hidden_state[:, -1]).squeeze(-1)

def build():
    torch.manual_seed(0); model = Probe(); opt = torch.optim.SGD(model.head.parameters(), lr=3000.0)
    g = torch.Generator().manual_seed(1); ids = torch.randint(0, 32, (8, 6), generator=g); y = torch.randn(8, generator=g)
    def loss_fn(m, b): return ((m(b[0]) - b[1]) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=[(ids, y)], loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=5))
