"""restran_mhc: licence plates from three frames, a ResNet with manifold-constrained hyper-connections, and CTC."""
