"""HTTP: what a front answers."""
