"""Benchmarks: maximum-flow solvers, whole data sets, and what contributions cost.

`inputs` makes attention weights, `libraries` wraps the other solvers, and `processes` runs them
where they can be stopped. `solvers`, `datasets` and `contributions` say what is measured; their
reports turn the measurements into tables. `decomposition` computes contributions the long way.
`runs` measures, saves and resumes, and `measure` times and measures memory. `compare` measures two
versions of attnflow against each other. `python -m benchmarks --help` shows how to start them.
"""
