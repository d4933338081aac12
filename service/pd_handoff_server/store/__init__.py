"""Arena, rules and waiting callers joined into reserve, put, get, release, abort. Synchronous; no event loop."""
