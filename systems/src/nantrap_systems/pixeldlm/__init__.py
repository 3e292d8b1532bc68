"""pixeldlm: token ids as pixels, and a diffusion transformer that predicts the clean image."""
