"""Handles each task once.

Usage: consume.py [RECORDS]. Ends after that many records; without a number it runs for ever.
KAFKA is the broker (127.0.0.1:9092), TOPIC the topic of the records (demo).
"""

import os
import sys

from confluent_kafka import Consumer
from punctual import Once

consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
        "group.id": os.environ.get("GROUP", "orders-python"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([os.environ.get("TOPIC", "demo")])


def text(data):
    # A record may have no key, and a tombstone has no value.
    return "nothing" if data is None else data.decode()


left = int(sys.argv[1]) if len(sys.argv) > 1 else -1
# In production: a table with a unique key, written in the transaction of the task's work.
once = Once()

try:
    while left != 0:
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error():
            sys.exit(str(record.error()))
        key, value = text(record.key()), text(record.value())
        if not once.run(record.headers(), lambda: print(f"{key}: {value}")):
            print(f"{key}: seen before, skipped")
        consumer.commit(record, asynchronous=False)
        left -= 1
except KeyboardInterrupt:
    pass
finally:
    # Leaves the group at once. Otherwise the partitions wait until the session has ended.
    consumer.close()
