"""The server's overhead over a session, under load, during a shutdown, and when a worker dies."""
