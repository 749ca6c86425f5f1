"""Whole networks against the device's physical limit, with AWS's published times for comparison."""
