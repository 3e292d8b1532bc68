"""T5 under fp16 autocast: the feed-forward of an encoder block multiplies large activations (weights trained in bf16).
Threads: huggingface/transformers#4586, #5300, #10830.
True cause: DenseReluDense.wo of the second block passes 65504 in float16."""
import torch
from transformers import T5Config, T5ForConditionalGeneration

def build():
    torch.manual_seed(0)
    cfg = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
    model = T5ForConditionalGeneration(cfg); opt = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    with torch.no_grad():
        ff = model.encoder.block[1].layer[1].DenseReluDense
        ff.wi.weight.fill_(30.0); ff.wo.weight.fill_(100.0)
    model.encoder.block[1].layer[1].layer_norm.weight.data.fill_(6.0)
    g = torch.Generator().manual_seed(1)
    batches = [dict(input_ids=torch.randint(2, 40, (2, 9), generator=g), labels=torch.randint(2, 40, (2, 5), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="encoder.block.1.layer.1.DenseReluDense.wo", phase="forward", op="aten.mm", first_bad_step=0))
