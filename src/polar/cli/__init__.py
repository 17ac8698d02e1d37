"""The command line: one module a command; the composition root."""
