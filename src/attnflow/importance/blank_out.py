"""Blank-out: how much the answer changes when a token is replaced.

Abnar and Zuidema (2020) replace each token by UNK and take the difference in the probability of the
class that the model predicts, after Zeiler and Fergus, "Visualizing and Understanding Convolutional
Networks" (ECCV 2014).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import switch
from attnflow.importance.reading import check_batch_size, read
from attnflow.models.adapter import Reading
from attnflow.models.answers import answers, ask


def blank_out(
    explainer: Any,
    inputs: Any,
    *,
    target: Any = None,
    contrast: Any = None,
    position: int | str = "auto",
    replacement: int | str = "auto",
    batch_size: int = 64,
    truncate: bool = False,
    signed: bool = False,
    units: Any = "tokens",
) -> Any:
    """Replace each token in turn, and measure what becomes of the model's answer.

    The importance of token t is ``|p(y) - p(y with t replaced)|``, where p is the model's
    probability and y the class or token that it predicts for the whole text, or the `target`. With
    a `contrast`, the difference of the two logits takes the place of the probability.

    Every token is replaced, special tokens too. A token that is the replacement already gets 0, and
    so does a token that comes after the position of a causal model, which cannot see it. A masked
    language model is asked about its mask: y is still read at its place when the mask itself is
    replaced. The importance of the mask is 0 if masks are the replacement. In an image a patch is
    replaced by the mean colour (pixel values of 0); special tokens get 0.

    Mind the replacement. UNK stands for a word that the model does not know only where the model
    was trained with it. For GPT-2 and many decoders since, UNK is the token that separates texts:
    the model ignores what comes before it, and nearly every token seems to matter. Use another word
    there, and try more than one.

    A text of n tokens needs n + 1 forward passes. Texts and replacements of one length run
    together, without padding.

    Args:
        explainer: An `attnflow.Explainer` whose model classifies or is a language model.
        inputs: What `Explainer.explain` takes: a text, or a list of texts; for an encoder-decoder
            source texts, or tuples of a source and the target so far; for a vision model images.
        target: The class, by name or index, or the token. For a list of texts it may be a list, one
            for each. None is what the model predicts.
        contrast: The class or token that the target is compared with, or a list of them. None is
            none.
        position: Where a language model is asked, as in `Explainer.explain`. A classifier has one
            answer wherever it is asked.
        replacement: What replaces a token: "unk", "mask", a token of the vocabulary, or its id.
            "auto" is UNK if the tokenizer has one, and else MASK.
        batch_size: How many texts run together at most; long ones are fewer.
        truncate: Cut a text that is longer than the model takes, instead of an error.
        signed: Whether to keep the sign: positive values are of tokens without which the answer
            has a smaller probability, or with a `contrast` a smaller difference.
        units: What is replaced as a whole: tokens, or the words, sentences, segments or stretches
            of the text that `Explanation.by_unit` takes.

    Returns:
        The importance of every token that the model reads, or of every unit, float64 of shape (n,),
        source before target; or a list of such arrays, one for each text, in their order.

    Raises:
        OptionError: If an option is not valid for this model.
        TextError: If a text is empty, not text, or longer than the model takes.
        ModelError: If the model predicts nothing that tokens could matter to.

    Example:
        >>> import attnflow
        >>> from attnflow.models.verb_number import checkpoint
        >>> explainer = attnflow.Explainer.from_pretrained(checkpoint())
        >>> importance = blank_out(explainer, "the keys to the cabinet")
        >>> importance.shape  # [CLS], the, keys, to, the, cabinet
        (6,)
        >>> int(importance.argmax())
        2
        >>> halves = [("subject", 0, 8), ("rest", 9, 23)]
        >>> blank_out(explainer, "the keys to the cabinet", units=halves).shape  # [CLS] too
        (3,)
    """
    check_batch_size(batch_size)
    signed = switch(signed, "signed")
    readings, many = read(
        explainer, inputs, target=target, contrast=contrast, position=position, truncate=truncate
    )
    adapter = explainer.adapter
    fill = adapter.fill(replacement)
    whole = ask(explainer, readings, batch_size)
    groups = [reading.tokens.grouped(units)[1] for reading in readings]
    results: list[NDArray[np.float64]] = [np.zeros(len(own)) for own in groups]

    def variants() -> Iterator[tuple[tuple[int, int], Reading]]:
        for index, (reading, answer) in enumerate(zip(readings, whole, strict=True)):
            asked = reading._replace(target=answer.target)
            for unit, tokens in enumerate(groups[index]):
                if any(adapter.changes(reading, token, fill) for token in tokens):
                    yield (index, unit), adapter.replaced(asked, tokens, fill)

    for (index, unit), answer in answers(explainer, variants(), batch_size):
        if readings[index].contrast is None:
            results[index][unit] = whole[index].probability - answer.probability
        else:
            results[index][unit] = whole[index].value - answer.value
    if not signed:
        results = [np.abs(effects) for effects in results]
    return results if many else results[0]
