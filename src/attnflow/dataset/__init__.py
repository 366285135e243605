"""Many texts: from a file of them to a Parquet data set of explanations.

`run` reads texts, explains each, and writes shards that are whole or not there. A run that was
stopped, in whatever way, goes on where it was. `load_attentions` reads the attention that it kept,
or any array of attention weights, to be explained without the model.
"""

from attnflow.attention import TextAttention
from attnflow.dataset.attentions import Attentions, load_attentions
from attnflow.dataset.runner import Progress, Result, run

__all__ = ["Attentions", "Progress", "Result", "TextAttention", "load_attentions", "run"]
