"""Checkpoints, finished models, and writing files whole or not at all."""
