"""doctor --fix and --undo: the changes that are safe, how they are made, and how they are undone."""
