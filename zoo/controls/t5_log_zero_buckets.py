"""CONTROL: T5. Its relative-position buckets take log(0) = -inf in every forward (discarded by an integer where), plus padding and -100 labels, with a loss spike from a reshuffled batch."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

def build():
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, relative_attention_num_buckets=8))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    fixed = torch.randint(1, 12, (3, 9), generator=g)
    for i in range(10):
        ids = fixed.clone() if i != 7 else torch.randint(12, 24, (3, 9), generator=g); ids[1, 6:] = 0
        lab = ids[:, :6].clone(); lab[2, 2:] = -100
        batches.append(dict(input_ids=ids, attention_mask=(ids != 0).long(), labels=lab))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
