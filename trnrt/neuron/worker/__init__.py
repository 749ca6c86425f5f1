"""NEFFs run by AWS's nrtpy in a process of its own Python: ``client`` starts and asks it, ``program`` is its script."""
