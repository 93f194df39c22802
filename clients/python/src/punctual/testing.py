"""For tests: a dev server, which is a node with a broker, and a clock that the test sets."""

import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from datetime import timedelta

from .client import Client
from .outcomes import fields, no_span
from .problems import Problem

#: In seconds. The server answers after 10 minutes at the latest.
TIMEOUT = 610


def _has_unit(span):
    return isinstance(span, str) and any(letter.isalpha() for letter in span)


class DevServer:
    """Runs ``punctual dev`` until it is closed. A context manager.

    Topics are NAME:PARTITIONS. The program is ``program``, by default that of PUNCTUAL_BIN,
    otherwise ``punctual`` from the PATH.
    """

    def __init__(self, *topics, program=None):
        program = program or os.environ.get("PUNCTUAL_BIN", "punctual")
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"no program `{program}` on the PATH; set PUNCTUAL_BIN, or give program="
            )
        words = [program, "dev", "--port", "0", "--kafka-port", "0", "--json"]
        words += [f"--topic={topic}" for topic in topics]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PUNCTUAL_")
        }
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self._log, env=environment
        )
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"punctual dev has ended: {self._log.read().decode()}")
        places = json.loads(line)
        self.url, self.kafka = places["url"], places["kafka"]

    def client(self):
        return Client(self.url)

    def advance(self, span):
        """Lets time pass: a timedelta, or text with a unit such as ``"30d"``.

        Returns when every task that is due until then is published.
        """
        if not isinstance(span, timedelta) and not _has_unit(span):
            raise no_span("advance", span)
        body = json.dumps(fields({"advance": span})).encode()
        headers = {"content-type": "application/json"}
        self._send(urllib.request.Request(f"{self.url}/dev/clock", body, headers))

    def published(self, topic):
        """Returns the records of a topic, in order."""
        name = urllib.parse.quote(topic, safe="")
        return self._send(f"{self.url}/dev/published?topic={name}")["records"]

    def _send(self, request):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise Problem(json.load(error)) from None

    def close(self):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
