"""Cancels the orders of tracked tasks, and answers for each attempt: it finishes, or it fails.

Usage: finish.py [RECORDS]. Ends after that many records; without a number it runs for ever.
PUNCTUAL_URL is the node (http://127.0.0.1:7070), KAFKA the broker (127.0.0.1:9092), TOPIC the topic
of the records (demo).
"""
import json
import os
import sys
import time
import urllib.error
import urllib.request

from confluent_kafka import Consumer

URL = os.environ.get("PUNCTUAL_URL", "http://127.0.0.1:7070")

consumer = Consumer({
    "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
    "group.id": os.environ.get("GROUP", "cancel-python"),
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
})
consumer.subscribe([os.environ.get("TOPIC", "demo")])


class ShopAway(Exception):
    pass


def cancel_unless_paid(order, attempt):
    """Stands for the work. Here, the shop is away during the first attempt."""
    if attempt == 1:
        raise ShopAway("the shop does not answer")


def answer(task, call, **body):
    """Tells Punctual how an attempt went, and returns the verdict. Repeating a call is safe."""
    request = urllib.request.Request(
        f"{URL}/v1/tasks/{task}/{call}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=35) as response:
                return json.load(response)["verdict"]
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):  # A later attempt was made, or the task has ended.
                return json.load(error).get("verdict")
            if error.code not in (429, 500, 502, 503, 504):
                raise
        except (urllib.error.URLError, TimeoutError):
            pass
        time.sleep(1)


left = int(sys.argv[1]) if len(sys.argv) > 1 else -1

while left != 0:
    record = consumer.poll(1.0)
    if record is None:
        continue
    if record.error():
        sys.exit(str(record.error()))
    headers = {name: value.decode() for name, value in record.headers() or []}
    task, attempt = headers["punctual-task-id"], int(headers["punctual-attempt"])
    order = record.key().decode()
    try:
        cancel_unless_paid(order, attempt)
        verdict = answer(task, "finish", attempt=attempt)
    except ShopAway as error:
        verdict = answer(task, "fail", attempt=attempt, reason=str(error), retry_in="1s")
    print(f"{order}, attempt {attempt}: {verdict}")
    # In any case: Punctual makes the next attempt, not Kafka.
    consumer.commit(record, asynchronous=False)
    left -= 1
consumer.close()
