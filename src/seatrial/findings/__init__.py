"""Known failures of the GPU-container chain: what they look like, why they happen, what fixes them."""
