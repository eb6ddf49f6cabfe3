"""What a project asks for, in each file that people write it in, and the versions chosen for it."""
