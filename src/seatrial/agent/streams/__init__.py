"""What passes through the agent: output and reports, with secrets cut out, and the run's evidence."""
