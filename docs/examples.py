"""Shows the examples of docstrings as code in the reference; griffe calls this extension.

Griffe recognises the section "Examples:" but treats "Example:" as prose.
"""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Renames the section of examples to the name that griffe recognises."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the section in the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
