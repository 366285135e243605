"""Many texts: from a file of texts to a Parquet data set of explanations.

`run` explains every text and writes shards, each whole or not at all. A run that was stopped, even
by a kill, can be resumed. `load_attentions` reads the attention that a run kept, or any array of
attention weights, to explain it without the model.
"""

from attnflow.attention import TextAttention
from attnflow.dataset.attentions import Attentions, load_attentions
from attnflow.dataset.runner import Progress, Result, run

__all__ = ["Attentions", "Progress", "Result", "TextAttention", "load_attentions", "run"]
