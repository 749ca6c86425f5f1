"""A model's inputs: from files and images, or drawn at random."""
