"""The page with a model behind it: ``attnflow serve``.

`question` reads what a client asks, `queue` lets clients take turns, `worker` runs the model,
`guard` checks who asks, `app` answers, and `server` listens and stops. `answer` and `messages` are
what the server sends, `openapi` describes it, and `metrics` counts. `serve.js` is the form, which
shows the page of `attnflow.view.page`.
"""

from attnflow.serve.limits import Limits
from attnflow.serve.server import listen, serve

__all__ = ["Limits", "listen", "serve"]
