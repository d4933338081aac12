"""What tests share: stores in this process and beside it, callers over any transport, records, and looks at errors."""
