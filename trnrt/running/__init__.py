"""A plan at work: its parts in turn, its buckets, its predicted profile."""
