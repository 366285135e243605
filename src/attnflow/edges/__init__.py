"""What an edge weighs besides the attention weight.

Each module has the arithmetic for one layer of a batch, on torch tensors: `effective` attention and
`value_norm`. `attnflow.capture.capture` and `capture_pair` call them as the layers pass.

This package needs torch, and is not imported by ``import attnflow``.
"""
