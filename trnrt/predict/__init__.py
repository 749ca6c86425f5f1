"""Batch prediction: any number of rows through a model, in parts; finished parts survive interruptions.

``job``      the settings, and all that the numbers depend on: the same in every process
``source``   the input files as rows; ``arrays``, ``parquet`` and ``pictures`` read them, ``opening`` chooses
``rows``     rows that were read, those set aside, and values converted to an input's dtype
``part``     one part: read, run, written
``output``   the directory: its lock, its manifest, and the parts that are done
``running``  all parts, one after the other; ``on_ray`` makes them in Ray's processes
"""
