"""Output for users: tables, JSON documents and report files.

``console``    results to stdout, notes and progress to stderr
``top``        the best classes of a classifier's output
``documents``  the JSON of each verb
``tables``     the tables of each verb
``profiles``   a profile on a terminal
``summary``    a profile under the names of AWS's profiler
``comparing``  a prediction against a baseline
``timeline``   rows, steps and tiles of a timeline, to draw
``trace``      the timeline as a trace for Perfetto
``page``       the HTML report of a profile
``files``      files that are written whole or not at all

Commands import the modules they need; importing this package imports none.
"""
