"""Search over the keyword arguments of a kernel, with the timing model as the judge.

``space``     the values to try: names, and a tuple of values for each
``search``    which candidates to try, in which order: all, or random ones and then neighbours of the best
``timing``    the predicted time of a candidate, or why it has none
``workers``   processes that time candidates
``records``   the file of results, from which a killed run resumes
``tuner``     all of it together: the best candidate, and whether its numbers are right
"""
