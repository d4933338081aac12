"""Parts of the server in C, which it also works without."""
