"""Authentication and authorisation of callers, TLS, and the files that both read."""
