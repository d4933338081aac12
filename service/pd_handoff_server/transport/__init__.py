"""Transport: translate between messages and the store, map refusals to statuses, and serve. Thin."""
