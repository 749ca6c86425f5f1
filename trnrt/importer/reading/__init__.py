"""From the file to a checked model."""
