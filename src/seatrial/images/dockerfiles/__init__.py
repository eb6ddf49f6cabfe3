"""Dockerfiles: the text that we write, what a build sends along, and the check of a user's own Dockerfile."""
