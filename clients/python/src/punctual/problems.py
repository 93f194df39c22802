"""The reasons why a call fails."""

PREFIX = "urn:punctual:problem:"
#: Problems with status 503 that prove that nothing was done.
NOT_DONE = ("busy", "draining", "unavailable", "not-ready")
#: The problem with status 429 that does not pass: a token or a host is wrong.
FINAL = "denied-too-often"


class Problem(Exception):
    """A refused request. Nothing was done, and the same request is refused again."""

    def __init__(self, body):
        self.body = body
        #: The last part of the type, such as ``unknown-topic``. Decide by it. Empty if a proxy has
        #: refused the request.
        self.slug = str(body.get("type", "")).removeprefix(PREFIX)
        self.status = body.get("status", 0)
        self.detail = body.get("detail", "")
        #: The wrong field, such as ``due_at``, or None.
        self.field = body.get("field")
        super().__init__(f"{self.slug or f'status {self.status}'}: {self.detail}")


class NoAnswer(Exception):
    """No attempt got an answer in time."""

    def __init__(self, message, is_unknown):
        #: True if an attempt may have taken effect. False: nothing was done.
        self.is_unknown = is_unknown
        super().__init__(message)
