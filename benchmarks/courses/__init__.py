"""The courses' own harnesses and AWS's samples, unchanged, on the old namespace's simulator. Their code isn't here.

``repositories``  what is fetched, by commit
``harnesses``     the runs, and what each must print
``working``       a working folder, and a harness run in it
``samples``       drivers for the kernels of nki-samples
``report``        the tables
"""
