"""Memory: rows of records in preallocated torch storage. No transport, no rules of life.

`layout` and `draft` import without torch, so that a plan can be made where it is missing.
"""
