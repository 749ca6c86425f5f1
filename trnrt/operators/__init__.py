"""The operators, one file a family: their records and the functions that lower them. ``record`` finds them all."""
