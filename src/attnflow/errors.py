"""The exceptions a caller may want to catch."""


class AttnflowError(Exception):
    """Any error that attnflow raises on purpose."""


class AttentionError(AttnflowError, ValueError):
    """The attention weights given are not what they should be."""


class OptionError(AttnflowError, ValueError):
    """An option or an index is not one of those that are valid."""


class StoppedError(AttnflowError):
    """A computation was stopped by a limit of `attnflow.limited`."""


class GraphSizeError(AttnflowError, MemoryError):
    """The attention graph would not fit into memory."""


class MissingExtraError(AttnflowError, ImportError):
    """An optional dependency is needed that is not installed."""


class ModelError(AttnflowError, ValueError):
    """A model cannot be loaded, or not be explained."""


class TextError(AttnflowError, ValueError):
    """A text is empty, not text, or longer than the model takes."""


class ImageError(OptionError, TextError):
    """An image cannot be read, or is not an image."""


class DataError(AttnflowError, ValueError):
    """A file of data has a line that cannot be read, or is not what it should be."""
