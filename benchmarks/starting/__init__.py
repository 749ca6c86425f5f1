"""The CPU time of short commands: imports, and the profile of a small kernel."""
