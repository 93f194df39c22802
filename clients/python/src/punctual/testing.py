"""For tests: a Punctual of their own, with a broker and a clock that a test sets."""

import json
import os
import subprocess
import tempfile
import urllib.request

from .client import Client


class DevServer:
    """Runs ``punctual dev`` until it is closed; a context manager.

    The program is ``program``, or that of PUNCTUAL_BIN, or ``punctual`` on the PATH.
    """

    def __init__(self, *topics, program=None):
        program = program or os.environ.get("PUNCTUAL_BIN", "punctual")
        words = [program, "dev", "--port", "0", "--kafka-port", "0", "--json"]
        words += [f"--topic={topic}" for topic in topics]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PUNCTUAL_")}
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._log, env=environment)
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"punctual dev has ended: {self._log.read().decode()}")
        told = json.loads(line)
        self.url, self.kafka = told["url"], told["kafka"]

    def client(self):
        return Client(self.url)

    def advance(self, delay):
        """Lets a timedelta pass. Returns when all that is due until then is published."""
        body = json.dumps({"advance": f"{round(delay.total_seconds() * 1000)}ms"}).encode()
        request = urllib.request.Request(f"{self.url}/dev/clock", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            answer.read()

    def published(self, topic):
        """Returns the records of a topic, in order."""
        with urllib.request.urlopen(f"{self.url}/dev/published?topic={topic}") as answer:
            return json.load(answer)["records"]

    def close(self):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
