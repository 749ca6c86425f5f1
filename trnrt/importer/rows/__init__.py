"""Which dimension is the batch, and whether its rows are independent."""
