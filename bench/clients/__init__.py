"""Clients of the store and of its peers, all with the same few jobs.

`single` puts and gets `count` records one at a time, `batch` in batches, `many` with many calls in flight. `hand_over`
and `take` are the two ends of a hand-off between processes: the taker waits for each record before it is put.
"""
