"""Workers, their supervisor, and the socket that they share."""
