"""Data sets on the device: file formats, batches, augmentation, and which rank trains on what."""
