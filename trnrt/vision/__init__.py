"""Detectors and segmenters: recognise their outputs, read boxes and masks from these, and draw them into a photo."""
