"""Cancels the orders of tracked tasks, and answers for each attempt: it finishes, or it fails.

Usage: finish.py [RECORDS]. Ends after that many records of tracked tasks; without a number it runs
for ever. Other records are skipped.
PUNCTUAL_URL is the node (http://127.0.0.1:7070), KAFKA the broker (127.0.0.1:9092), TOPIC the topic
of the records (demo).
"""

import os
import sys
from datetime import timedelta

from confluent_kafka import Consumer
from punctual import Client, attempt, task_id

client = Client(os.environ.get("PUNCTUAL_URL", "http://127.0.0.1:7070"))
consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
        "group.id": os.environ.get("GROUP", "cancel-python"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe([os.environ.get("TOPIC", "demo")])


class ShopAway(Exception):
    pass


def cancel_unless_paid(order, number):
    """Stands for the work. Here, the shop is away during the first attempt."""
    if number == 1:
        raise ShopAway("the shop does not answer")


left = int(sys.argv[1]) if len(sys.argv) > 1 else -1

try:
    while left != 0:
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error():
            sys.exit(str(record.error()))
        task, number = task_id(record.headers()), attempt(record.headers())
        if number is None:
            # Nobody waits for an answer: the task is not tracked, or the record is of another
            # producer.
            consumer.commit(record, asynchronous=False)
            continue
        order = "-" if record.key() is None else record.key().decode()
        try:
            cancel_unless_paid(order, number)
            answered = client.finish(task, number)
        except ShopAway as error:
            answered = client.fail(task, number, str(error), retry_in=timedelta(seconds=1))
        print(f"{order}, attempt {number}: {answered.verdict.value}")
        # In any case: Punctual makes the next attempt, not Kafka.
        consumer.commit(record, asynchronous=False)
        left -= 1
except KeyboardInterrupt:
    pass
finally:
    # Leaves the group at once. Otherwise the partitions wait until the session has ended.
    consumer.close()
