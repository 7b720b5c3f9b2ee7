"""What is to be measured: the schema, the files it is read from, and the grid of trials."""
