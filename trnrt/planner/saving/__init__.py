"""Plans as documents: for the cache, and for people to edit."""
