"""``trnrt bench labs``: the kernels against the published times of two university labs and a student's write-up."""
