"""``trnrt doctor --self-test``: every kernel on small shapes and both sample models, on the machine's own device.

It is written to be run where its authors could not run it: each case is on its own, in a process that may hang or
crash, and one file holds all that there is to send back.
"""
