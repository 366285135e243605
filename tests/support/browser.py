"""A page in a real browser, as the tests of the page see it."""

import numpy as np


class Shown:
    """A page in the browser, and what it complained about and asked for."""

    def __init__(self, page, path):
        self.page = page
        self.path = path
        self.complaints = []
        self.requests = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))

    def ready(self):
        self.page.locator("main[data-flow=done]").wait_for()
        return self

    def data(self, name):
        return self.page.locator("main").get_attribute(f"data-{name}")

    def settle(self, **state):
        """Wait until the page shows a state."""
        wanted = "".join(f"[data-{name}='{value}']" for name, value in state.items())
        self.page.locator(f"main{wanted}[data-flow=done]").wait_for()

    def table(self):
        """Return the numbers of the page's table, a row a token."""
        details = self.page.locator("details.numbers")
        if details.get_attribute("open") is None:
            details.locator("summary").click()
        details.locator("tbody tr").first.wait_for()
        rows = details.locator("tbody").evaluate(
            "body => Array.from(body.rows, row => "
            "Array.from(row.querySelectorAll('td'), cell => Number(cell.textContent)))"
        )
        return np.array(rows)
