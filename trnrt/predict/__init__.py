"""Batch prediction: any number of rows through a model, in parts that are made once, whatever interrupts.

``job``      what is asked for, and all that the numbers depend on: the same in every process
``source``   what the input files hold, as rows; ``arrays``, ``parquet`` and ``pictures`` read them
``rows``     rows that were read, those set aside, and values made to fit an input
``part``     one part: read, run, written
``output``   the directory: its lock, its manifest, and what is done already
``running``  all parts, one after the other, until somebody stops it; ``on_ray`` has them made by Ray's processes
"""
