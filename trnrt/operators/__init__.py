"""The operators, one file per family: their records and the functions that lower them. ``record`` finds them all."""
