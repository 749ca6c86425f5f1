"""A pytest plugin for kernels: run them on the simulator, compare with numpy, hold them to a predicted time.

``plugin``     the options, fixtures and the mark; imports the rest when a test needs it
``running``    a kernel's run, and what it is compared with
``comparing``  tolerances, and the elements that are wrong
``writers``    the instruction that wrote an element
``budgets``    predicted times against a budget

``docs/testing-kernels.md`` shows how to use it.
"""
