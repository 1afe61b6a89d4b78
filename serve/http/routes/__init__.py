"""One file per group of paths."""
