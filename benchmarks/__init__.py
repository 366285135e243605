"""Benchmarks: attnflow against other maximum-flow solvers, and whole data sets against a loop.

`inputs` makes attention weights, `libraries` wraps the other solvers, and `processes` runs them
where they can be stopped. `solvers` and `datasets` say what is measured; their reports turn the
measurements into tables. `runs` measures, saves and resumes. `compare` measures two versions of
attnflow against each other. `python -m benchmarks --help` shows how to start them.
"""
