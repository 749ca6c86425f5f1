"""The work of the command line's verbs; ``trnrt.cli`` declares them.

``options``   the flags that verbs share, and their values
``opening``   a session, and what to feed it
"""
