"""RoBERTa question answering: in one batch all answers lie behind max_length. The model clamps such positions to its ignored index, so no target is left.
True cause: mean over zero targets, in both the start and the end loss."""
import torch
from transformers import RobertaConfig, RobertaForQuestionAnswering

def build():
    torch.manual_seed(0)
    cfg = RobertaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=20, pad_token_id=1)
    model = RobertaForQuestionAnswering(cfg); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        ids = torch.randint(3, 40, (3, 12), generator=g); s = torch.randint(0, 6, (3,), generator=g)
        if i == 3: s = s + 60
        batches.append(dict(input_ids=ids, start_positions=s, end_positions=s + 3))
    def loss_fn(m, b): return m(**b).loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=["label_out_of_range"], module="loss", phase="forward", op="aten.nll_loss_forward", first_bad_step=3))
