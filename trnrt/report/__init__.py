"""What a user gets to read: tables, JSON documents, and report files.

``text``       names and numbers as text, safe for a terminal
``console``    where text goes: results to stdout, notes and progress to stderr
``top``        the best classes of a classifier's output
``documents``  the JSON of each verb
``tables``     the tables of each verb
``files``      files that are written whole or not at all

The modules are imported where a command needs them: importing this package imports none of them.
"""
