"""CLIP under fp16 autocast with a home-made loss scaler that grows and never backs off: at step 3 the scale reaches 2^40 and the gradients leave fp16. The hook divides by the
scale before the step (correct). Every step the program clamps logit_scale in place (legal write), temperature 100, lr raised at step 3 too: innocent."""
import torch, torch.nn as nn
from transformers import CLIPConfig, CLIPModel

class Net(nn.Module):
    def __init__(s):
        super().__init__(); c = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
        s.clip = CLIPModel(CLIPConfig(text_config=dict(vocab_size=40, max_position_embeddings=12, bos_token_id=1, eos_token_id=2, pad_token_id=0, **c), vision_config=dict(image_size=8, patch_size=4, **c), projection_dim=8))
    def forward(s, ids, px):
        t = s.clip.text_projection(s.clip.text_model(input_ids=ids).pooler_output).float(); v = s.clip.visual_projection(s.clip.vision_model(pixel_values=px).pooler_output).float()
        n = nn.functional.normalize; return (n(v, dim=-1, eps=1e-6) * s.clip.logit_scale.exp())[:, None], n(t, dim=-1, eps=1e-6)[None]

def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); st = dict(scale=1.0)
    with torch.no_grad(): model.clip.logit_scale.fill_(4.7)
    def unscale(o, *a):
        for q in o.param_groups:
            for p in q["params"]:
                if p.grad is not None: p.grad.div_(st["scale"])
    opt.register_step_pre_hook(unscale)
    batches = [(torch.randint(3, 40, (4, 6), generator=g), torch.randn(4, 3, 8, 8, generator=g), k) for k in range(6)]
    def loss_fn(m, b):
        st["scale"] = 2.0 ** 4 if b[2] < 3 or fix == "true" else 2.0 ** 40            # growth interval passed: x2 for every micro-step since the start
        if b[2] == 3 and fix != "innocent": opt.param_groups[0]["lr"] = 3e-4
        if fix != "innocent":
            with torch.no_grad(): m.clip.logit_scale.clamp_(0, 4.6052)
        v, t = m(b[0], b[1]); l = (v * t).sum(-1); y = torch.arange(4)
        return st["scale"] * (nn.functional.cross_entropy(l, y) + nn.functional.cross_entropy(l.T, y)) / 2
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           why="gradients finite with scale 16, Inf in fp16 with scale 2^40; forward and loss finite"))
