"""CUDA kernels of our own, and the autograd functions around them."""
