"""Define what the host writes and the agent reads."""
