"""Messages and stubs of the package pd_handoff.v1, generated from protos/ by `make gen`. Do not edit."""
