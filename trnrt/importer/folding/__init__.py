"""Constants are computed, and every shape and type becomes known."""
