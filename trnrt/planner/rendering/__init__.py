"""Plan to kernel module: the Python source that both backends run."""
