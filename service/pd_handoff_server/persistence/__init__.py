"""The arena in a file that outlives the process, and how a store goes on from it (docs/adr/0004)."""
