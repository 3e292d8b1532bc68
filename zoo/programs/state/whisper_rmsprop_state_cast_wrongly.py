"""Whisper (tiny config): before batch 2 the trainer restores the optimizer from a checkpoint in which RMSprop's square_avg of one weight was cast wrongly and holds a negative value: sqrt(negative) in the update.
The weights, the batch and the gradients are finite."""
import copy, torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
def build():
    torch.manual_seed(0)
    cfg = WhisperConfig(vocab_size=30, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, d_model=16,
                        max_source_positions=10, max_target_positions=12, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None)
    model = WhisperForConditionalGeneration(cfg); opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    names = [n for n, _ in model.named_parameters()]; target = names.index("model.decoder.layers.0.fc1.weight")
    def loader():
        g = torch.Generator().manual_seed(1)
        for step in range(6):
            if step == 2:
                sd = copy.deepcopy(opt.state_dict()); sd["state"][target]["square_avg"][3, 4] = -0.5; opt.load_state_dict(sd)
            yield dict(input_features=torch.randn(2, 8, 20, generator=g), labels=torch.randint(3, 30, (2, 7), generator=g))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt", first_bad_step=2, loss_finite_at_first_bad_step=True, param="model.decoder.layers.0.fc1.weight",
                           why="square_avg is negative in the restored state."))
