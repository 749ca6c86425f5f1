"""Public instruction traces beside our timeline: what AWS's profiler saw of a kernel on a device, event by event.

``reading`` and ``resolving`` make a ``Run`` of a profiler's JSON report, ``ours`` makes one of a timeline, so that all
the rest treats both alike: ``aligning`` pairs their events, ``facts`` and ``clock`` measure the mechanisms of each, and
``comparing`` puts all together.
"""
