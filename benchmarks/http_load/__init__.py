"""Load on a server of this machine, bounded and measured, from a few processes. Standard library only."""
