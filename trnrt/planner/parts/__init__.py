"""A model in parts: what runs on the device, and what runs on the CPU between."""
