"""What the verbs of the command line do; ``trnrt.cli`` declares them.

``options``   the flags that verbs share, and their values
``opening``   a session, and what to feed it
"""
