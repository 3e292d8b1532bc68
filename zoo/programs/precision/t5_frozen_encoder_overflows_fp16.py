"""T5 under fp16 autocast, frozen encoder, decoder trained with Adam at a bold rate. One vocabulary entry (seen first in batch 3) excites a hot unit of the encoder FFN.
True cause: the second encoder FFN's wo gives about 240000 > 65504. The rate is high but innocent: the encoder does not learn at all."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

def build():
    torch.manual_seed(0)
    cfg = T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, feed_forward_proj="relu",
                   relative_attention_num_buckets=8, tie_word_embeddings=False)
    model = T5ForConditionalGeneration(cfg)
    with torch.no_grad():
        model.shared.weight[:, 0] = 0.0; model.shared.weight[23].zero_(); model.shared.weight[23, 0] = 30.0
        for blk in model.encoder.block: blk.layer[0].SelfAttention.o.weight.mul_(0.05)
        model.encoder.block[0].layer[1].DenseReluDense.wo.weight.mul_(0.02)
        ffn = model.encoder.block[1].layer[1].DenseReluDense
        ffn.wi.weight[5].zero_(); ffn.wi.weight[5, 0] = 200.0; ffn.wo.weight.mul_(0.1); ffn.wo.weight[3, 5] = 300.0
    model.encoder.requires_grad_(False); model.shared.requires_grad_(False)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        ids = torch.randint(1, 23, (3, 7), generator=g)
        if i == 3: ids[2, 4] = 23
        batches.append(dict(input_ids=ids, labels=torch.randint(1, 23, (3, 5), generator=g)))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="encoder.block.1.layer.1.DenseReluDense.wo", phase="forward", op="aten.mm", first_bad_step=3))
