"""Plan a container of this machine, in the engines' common terms."""
