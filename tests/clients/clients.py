"""Asks with what Python has, as `tests/integration/http_clients.rs` has it: BASE, then lines of PATH TYPE BYTES on standard input.

For each line and each client: the status of a POST of so many blanks, and of GET /livez after it with the same client.
"""

import http.client
import sys
from urllib.parse import urlsplit

import requests

base = sys.argv[1]
address = urlsplit(base).netloc


def by_http_client(connection, path, kind, size):
    connection.request("POST", path, body=b" " * size, headers={"Content-Type": kind})
    answer = connection.getresponse()
    answer.read()
    connection.request("GET", "/livez")
    after = connection.getresponse()
    after.read()
    return answer.status, after.status


def by_requests(session, path, kind, size, chunked):
    body = (b" " * piece for piece in pieces(size)) if chunked else b" " * size
    answer = session.post(base + path, data=body, headers={"Content-Type": kind})
    after = session.get(base + "/livez")
    return answer.status_code, after.status_code


def pieces(size):
    while size > 0:
        yield min(size, 65536)
        size -= 65536


connection = http.client.HTTPConnection(address, timeout=60)
session = requests.Session()
for line in sys.stdin:
    path, kind, size = line.split()
    for name, ask in [
        ("http.client", lambda: by_http_client(connection, path, kind, int(size))),
        ("requests", lambda: by_requests(session, path, kind, int(size), False)),
        ("requests,chunked", lambda: by_requests(session, path, kind, int(size), True)),
    ]:
        try:
            status, after = ask()
        except Exception as error:  # what a caller would see instead of its answer
            status, after = type(error).__name__, str(error).replace(" ", "_")
            connection.close()
        print(name, path, kind, size, status, after)
