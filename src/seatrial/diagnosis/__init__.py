"""Samples and step events → what bounds the run, and what would help."""
