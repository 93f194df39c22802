"""Conditions of a change: If-Match, If-None-Match, and ``when`` of a replacement."""

import re
import urllib.parse

from .outcomes import fields


def condition_headers(if_match, if_none_match):
    """Returns the headers of a condition.

    Each is the id of a task, a list of ids, the revision of a topic or schedule, ``"*"``, or None.
    Raises a ValueError for an empty list, and for an id that HTTP cannot carry.
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
    given = list(ids) if isinstance(ids, (list, tuple, set, frozenset)) else [ids]
    if not given:
        raise ValueError("a condition has no ids: give None for no condition")
    for one in given:
        # A "*" in quotes is the tag of no task, so if_none_match would always hold.
        is_id = isinstance(one, (str, int)) and not isinstance(one, bool) and one != "*"
        if not is_id or not re.fullmatch(r"[!#-~]+", str(one)):
            raise ValueError(f'{one!r} in a condition is not an id or a revision; "*" stands alone')
    return ", ".join(f'"{one}"' for one in given)
