"""Gemma continued from a checkpoint. One element of a momentum buffer in the optimizer file is Inf (it was saved just when another run
diverged); weights are clean. Loss and gradients of the first step are finite, the update is not.
True cause: corrupt optimizer state; with a fresh state the run is finite."""
import copy
import torch
import torch.nn.functional as F
from transformers import GemmaConfig, GemmaForCausalLM

VOCAB = 32


def build():
    torch.manual_seed(0)
    cfg = GemmaConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=12, max_position_embeddings=32, attn_implementation="eager", pad_token_id=0)
    model = GemmaForCausalLM(cfg)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(1, VOCAB, (3, 8), generator=g) for _ in range(6)]

    def loss_fn(m, x):
        logits = m(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), x[:, 1:].reshape(-1))

    for x in batches[:2]:
        loss_fn(model, x).backward()
        opt.step()
        opt.zero_grad()
    state = copy.deepcopy(opt.state_dict())
    index = [n for n, _ in model.named_parameters()].index("model.layers.1.mlp.up_proj.weight")
    state["state"][index]["momentum_buffer"][3, 5] = float("inf")
    opt.load_state_dict(state)
    return dict(model=model, optimizer=opt, batches=batches[2:], loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="state", op=None, first_bad_step=0,
                           loss_finite_at_first_bad_step=True, grads_finite=True, param="model.layers.1.mlp.up_proj.weight",
                           also_phase=["optimizer"], also_module=["model.layers.1.mlp.up_proj"], also_op=["aten.add_", "aten.mul_"]))
