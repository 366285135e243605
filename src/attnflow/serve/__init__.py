"""The page with a model behind it: ``attnflow serve``.

`question.py` reads what a client asks, `queue.py` lets clients take turns, `worker.py` asks the
model, `app.py` answers, `guard.py` is the door, and `server.py` listens and stops. `openapi.py`
describes it all, and `metrics.py` counts. `serve.js` is the form; what it shows is the page of
`attnflow.view.page`.
"""

from attnflow.serve.limits import Limits
from attnflow.serve.server import listen, serve

__all__ = ["Limits", "listen", "serve"]
