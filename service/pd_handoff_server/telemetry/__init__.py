"""Events, metrics and traces: what the store tells the people who run it. Never the contents of a record."""
