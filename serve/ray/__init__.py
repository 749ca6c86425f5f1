"""Serving on Ray: its front, its replicas, and what they say to each other."""
