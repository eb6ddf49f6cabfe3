"""Optimizers and learning-rate schedules that a CUDA graph can capture."""
