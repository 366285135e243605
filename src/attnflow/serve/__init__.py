"""The page with a model behind it: ``attnflow serve``.

`question` reads what a client asks, `queue` lets clients take turns, `worker` runs the model,
`guard` checks who asks, `app` answers, and `server` listens and stops. `answer` and `messages` are
what the server sends, `openapi` describes it, and `metrics` counts. In ``page/``, ``served.js``
puts together the form, the questions to the server (``api.js``) and the results, which are the
pages of `attnflow.view`.
"""

from attnflow.serve.limits import Limits
from attnflow.serve.server import listen, serve

__all__ = ["Limits", "listen", "serve"]
