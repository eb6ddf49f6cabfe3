"""The target's process: its command line, environment and signals, and that nothing outlives the agent."""
