"""A receipt as text: terminal, Markdown and HTML."""
