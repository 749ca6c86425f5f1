"""``trnrt doctor --self-test``: every kernel on small shapes and both sample models, on the machine's own device.

Its authors could not run it on a device, so each case runs in a process that may hang or crash, and one file holds all
that there is to send back.
"""
