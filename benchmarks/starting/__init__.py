"""The CPU time of short commands: imports, a first answer, and the profile of a small kernel."""
