"""Reading a project's Python without running it: what of it runs, what it imports, and what that shows."""
