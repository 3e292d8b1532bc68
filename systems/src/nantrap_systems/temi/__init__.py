"""temi: multi-head self-distillation that clusters cached embeddings."""
