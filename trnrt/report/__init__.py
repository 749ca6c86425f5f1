"""What a user gets to read: tables, JSON documents, and report files.

``text``       names and numbers as text, safe for a terminal
``console``    where text goes: results to stdout, notes and progress to stderr
``top``        the best classes of a classifier's output
``documents``  the JSON of each verb
``tables``     the tables of each verb
``profiles``   what a terminal shows of a profile
``summary``    a profile under the names of AWS's profiler
``comparing``  predictions before and after
``timeline``   rows, steps and tiles of a timeline, for the pictures of it
``trace``      the timeline as a trace for Perfetto
``page``       the HTML report of a profile
``calibration`` predictions against published times
``files``      files that are written whole or not at all

The modules are imported where a command needs them: importing this package imports none of them.
"""
