"""Statistics on plain arrays and values: percentiles, tests, verdicts. No files are read here."""
