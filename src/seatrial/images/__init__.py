"""Job → Dockerfile text (pure) → built image."""
