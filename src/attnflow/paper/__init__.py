"""The experiments of "Quantifying Attention Flow in Transformers" (Abnar and Zuidema, ACL 2020).

The readers need NumPy only. The modules for training, tables and figures need the extras hf and
view.
"""

from attnflow.paper.data import (
    Agreement,
    Fault,
    Labelled,
    read_agreement,
    read_json_lines,
    read_sst2,
)

__all__ = ["Agreement", "Fault", "Labelled", "read_agreement", "read_json_lines", "read_sst2"]
