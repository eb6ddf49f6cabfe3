"""Resolve packages on the host: which versions fit together, on which Python, from which indexes."""
