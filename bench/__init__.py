"""Benchmarks: the store beside its peers, in one run. `python -m bench`, or `--quick`."""
