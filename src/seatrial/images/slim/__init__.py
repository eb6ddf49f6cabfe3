"""Slim an image: options are chosen on the host, the program runs in the build."""
