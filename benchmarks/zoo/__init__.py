"""The zoo: well-known networks with their accuracy, predicted times, what bounds them, and what others published."""
