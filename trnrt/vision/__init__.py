"""Detectors and segmenters: which outputs are boxes or masks, what they say of a photo, and pictures of that."""
