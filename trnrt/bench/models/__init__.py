"""``trnrt bench models``: whole networks against AWS's published times, and against the device's physical limit."""
