"""T5 whose feed-forward weights were 'initialised' with std = 1e+20 (a sign lost in the exponent) : the first forward already overflows in wo. fp32 throughout."""
import torch
from transformers import T5Config, T5ForConditionalGeneration
def build():
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0))
    for n, p in model.named_parameters():
        if "encoder.block.1" in n and "DenseReluDense" in n: torch.nn.init.normal_(p, std=1e20)
    opt = torch.optim.Adafactor(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [dict(input_ids=torch.randint(1, 30, (2, 9), generator=g), labels=torch.randint(1, 30, (2, 6), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="encoder.block.1.layer.1.DenseReluDense.wo", phase="forward", op="aten.mm", first_bad_step=0, loss_finite_at_first_bad_step=False,
                           also=["uninitialised_memory"], why="Weights of 1e20 times activations of 1e21 overflow fp32 in the very first forward."))
