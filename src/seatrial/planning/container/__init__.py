"""What a container of this machine is, in the engines' common terms."""
