"""Comparisons with other libraries: the same computation in theirs and in ours."""
