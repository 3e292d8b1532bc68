"""latentdlm: masked text diffusion and latent diffusion in one transformer over both."""
