"""Conditions of a change: If-Match, If-None-Match, and ``when`` of a replacement."""

import urllib.parse

from .outcomes import fields


def condition_headers(if_match, if_none_match):
    """Returns the headers of a condition.

    Each is the id of a task, a list of ids, the revision of a topic or schedule, ``"*"``, or None.
    """
    given = {"if-match": if_match, "if-none-match": if_none_match}
    return {name: _tags(ids) for name, ids in given.items() if ids is not None}


def condition_query(when, not_after):
    """Returns the query of a condition about due times, with its question mark, or no text."""
    given = fields({"when": when, "not_after": not_after})
    return f"?{urllib.parse.urlencode(given)}" if given else ""


def _tags(ids):
    if ids == "*":
        return ids
    return ", ".join(f'"{one}"' for one in ([ids] if isinstance(ids, (str, int)) else ids))
