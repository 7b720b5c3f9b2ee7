"""The load generator: everything between a request body on disk and a row of clock readings."""
