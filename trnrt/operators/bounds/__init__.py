"""How operators carry errors: the rules named in their records, one file per family."""
