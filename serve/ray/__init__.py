"""Serving on Ray: its front, its replicas, and their messages."""
