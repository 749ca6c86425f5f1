"""What the server adds to a session, under load and when it is stopped or loses a worker."""
