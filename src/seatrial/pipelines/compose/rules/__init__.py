"""Rules of the lint, a file for each subject."""
