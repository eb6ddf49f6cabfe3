"""up and down for stages."""
