"""For tests: a dev server, which is a node with a broker, and a clock that the test sets."""

import json
import os
import subprocess
import tempfile
import urllib.parse
import urllib.request

from .client import Client

#: In seconds. The server gives up on a task that it cannot publish for 10 seconds.
TIMEOUT = 60


class DevServer:
    """Runs ``punctual dev`` until it is closed. A context manager.

    Topics are NAME:PARTITIONS. The program is ``program``, by default that of PUNCTUAL_BIN,
    otherwise ``punctual`` from the PATH.
    """

    def __init__(self, *topics, program=None):
        program = program or os.environ.get("PUNCTUAL_BIN", "punctual")
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
        """Lets a timedelta pass. Returns when every task that is due until then is published."""
        body = json.dumps({"advance": f"{round(span.total_seconds() * 1000)}ms"}).encode()
        headers = {"content-type": "application/json"}
        self._send(urllib.request.Request(f"{self.url}/dev/clock", body, headers))

    def published(self, topic):
        """Returns the records of a topic, in order."""
        name = urllib.parse.quote(topic, safe="")
        return self._send(f"{self.url}/dev/published?topic={name}")["records"]

    def _send(self, request):
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def close(self):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
