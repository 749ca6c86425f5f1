"""How operators carry errors: the rules that their records name, a file per family."""
