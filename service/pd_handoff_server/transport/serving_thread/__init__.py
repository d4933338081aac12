"""The fast transport: the public synchronous server, with the calls of the store answered on its serving thread."""
