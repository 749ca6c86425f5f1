"""Whole networks at several batches: how far each is above what the hardware needs, and what holds it."""
