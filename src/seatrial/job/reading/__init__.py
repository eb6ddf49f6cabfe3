"""Reading a project's Python without running it: which parts run, what they import, and what that shows."""
