"""Compare public instruction traces with our timeline: a kernel's events on a device, as AWS's profiler recorded them.

``reading`` and ``resolving`` make a ``Run`` of a profiler's JSON report, ``ours`` makes one of a timeline; everything
else treats both alike. ``aligning`` pairs their events, ``facts`` and ``clock`` measure the mechanisms of each, and
``comparing`` combines the results.
"""
