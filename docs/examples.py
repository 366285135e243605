"""Lets the reference show the examples of docstrings as code: griffe calls it.

Griffe knows the section "Examples:" and takes "Example:" for prose.
"""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Gives the section of examples the name that griffe knows."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Look at the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
