"""Models on their device, batch by batch."""
