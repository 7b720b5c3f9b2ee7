"""The run directory and its files, and the values in them."""
