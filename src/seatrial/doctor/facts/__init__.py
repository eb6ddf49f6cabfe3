"""What the checks look at: this machine, a container on it, and a cluster, each read once."""
