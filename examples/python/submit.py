"""Cancel an order in 30 minutes unless it is paid.

PUNCTUAL_URL is a node (http://127.0.0.1:7070), TOPIC where the record goes (demo).
"""
import json
import os
import sys
import time

import requests

BASE = os.environ.get("PUNCTUAL_URL", "http://127.0.0.1:7070") + "/v1"
TOPIC = os.environ.get("TOPIC", "demo")
session = requests.Session()
session.headers["content-type"] = "application/json"


def call(method, path, body=None):
    """Repeats the request until there is an answer.

    Repeating is safe because every task here has a name: the same name makes no second task.
    """
    # The record's value is the payload's text, byte for byte.
    text = json.dumps(body, separators=(",", ":")) if body else None
    for attempt in range(8):
        try:
            answer = session.request(method, BASE + path, data=text, timeout=5)
            if answer.status_code not in (429, 503):
                return answer
            pause = float(answer.headers.get("Retry-After", 1))
        except requests.RequestException:
            pause = min(0.1 * 2**attempt, 5)
        time.sleep(pause)
    sys.exit(f"{method} {path}: no answer")


def submit(order, delay):
    name = f"cancel-order-{order}"
    task = {"topic": TOPIC, "name": name, "delay": delay, "key": f"order-{order}", "payload": {"cancel": order}}
    answer = call("POST", "/tasks", task)
    if answer.status_code not in (200, 201):
        sys.exit(answer.text)
    # A known task may be cancelled since: PUT schedules a new one.
    state = answer.json()["state"]
    print(f"{name}: {state if answer.status_code == 201 else f'known already, {state}'}")


def reschedule(order, delay):
    name = f"cancel-order-{order}"
    answer = call("PUT", f"/topics/{TOPIC}/tasks/{name}", {"delay": delay, "key": f"order-{order}", "payload": {"cancel": order}})
    print(f"{name}: {'rescheduled' if answer.ok else answer.json()['verdict']}")


def cancel(order):
    name = f"cancel-order-{order}"
    print(f"{name}: {call('DELETE', f'/topics/{TOPIC}/tasks/{name}').json()['verdict']}")


submit(17, "30m")
submit(17, "30m")  # again, as after a lost answer
cancel(17)  # it was paid
submit(18, "30m")
reschedule(18, "1s")  # this customer has less time
