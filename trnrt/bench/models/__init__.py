"""``trnrt bench models``: whole networks against the device's physical limit, with AWS's published times beside it."""
