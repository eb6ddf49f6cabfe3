"""What the verbs print and ask."""
