"""radiodiff: radio maps by conditional latent diffusion, decoupled into data and noise."""
