"""A run while it goes on: its output as it comes, its last numbers, and what this host sees of its GPUs."""
