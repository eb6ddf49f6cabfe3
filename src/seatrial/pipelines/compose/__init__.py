"""Compose files of the user's, run as they are: read, checked, given GPUs and the agent by an override, followed."""
