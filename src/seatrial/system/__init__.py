"""Doors from the host side to the outside: commands, files, and the agent's archive."""
