"""Models that are served: loaded, checked, batched, measured."""
