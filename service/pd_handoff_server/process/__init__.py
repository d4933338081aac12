"""Settings of the operating system process: allocator, memory and environment."""
