"""Handles each task once.   consume.py [RECORDS]   (for ever, unless told after how many records to end)

KAFKA is the broker (127.0.0.1:9092), TOPIC where the records are (demo).
"""
import os
import sys
from collections import OrderedDict

from confluent_kafka import Consumer

REMEMBERED = 100_000  # a duplicate comes soon after the first: when a node was declared dead, or an acknowledgement was lost

consumer = Consumer({
    "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
    "group.id": os.environ.get("GROUP", "orders-python"),
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
})
consumer.subscribe([os.environ.get("TOPIC", "demo")])


def text(data):
    return "nothing" if data is None else data.decode()  # a record may come without a key, and a tombstone comes without a value


left = int(sys.argv[1]) if len(sys.argv) > 1 else -1
seen = OrderedDict()  # in real life: a table with a unique key, written in the transaction of what the task does

while left != 0:
    record = consumer.poll(1.0)
    if record is None:
        continue
    if record.error():
        sys.exit(str(record.error()))
    headers = dict(record.headers() or [])
    task = headers["punctual-task-id"]
    if task in seen:
        print(f"{text(record.key())}: seen before, skipped")
    else:
        print(f"{text(record.key())}: {text(record.value())}")
        seen[task] = True
        if len(seen) > REMEMBERED:
            seen.popitem(last=False)
    consumer.commit(record, asynchronous=False)
    left -= 1
consumer.close()
