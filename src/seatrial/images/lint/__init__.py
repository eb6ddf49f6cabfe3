"""Check a user's own Dockerfile for errors that concern GPUs, CUDA and frameworks."""
