"""The operators, one file a family: their records, with the functions that lower them. ``record`` finds them all."""
