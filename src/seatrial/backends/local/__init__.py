"""A process of this machine, without a container."""
