"""The benchmark: attnflow against general maximum-flow solvers, on the same attention.

The parts, in the order in which data moves through them: `inputs` makes attention weights,
`solvers` holds the other solvers behind one uniform call, `processes` runs them where they can be
stopped, `suite` plans and measures, `results` is the JSON document that comes out, and `report`
turns it into tables. `attnflow bench` is the way in.
"""
