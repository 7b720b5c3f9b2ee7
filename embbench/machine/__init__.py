"""The host: what it is, what it does while a trial runs, and what would be wrong with it."""
