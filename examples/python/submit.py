"""Cancel an order in 30 minutes unless it is paid.

PUNCTUAL_URL is a node (http://127.0.0.1:7070), TOPIC where the record goes (demo).
"""

import os
from datetime import timedelta

from punctual import Client

client = Client(os.environ.get("PUNCTUAL_URL", "http://127.0.0.1:7070"))
TOPIC = os.environ.get("TOPIC", "demo")


def task(order, **due):
    return {"payload": {"cancel": order}, "key": f"order-{order}", "delay": timedelta(**due)}


first = client.submit(TOPIC, name="cancel-order-17", **task(17, minutes=30))
print("cancel-order-17:", first["state"])
# Again, as after a crash: the name is known, so this makes no second task.
again = client.submit(TOPIC, name="cancel-order-17", **task(17, minutes=30))
print(
    "cancel-order-17:", "known already," if again["id"] == first["id"] else "new,", again["state"]
)
# It was paid.
print("cancel-order-17:", client.cancel(TOPIC, "cancel-order-17").verdict.value)
print(
    "cancel-order-18:",
    client.submit(TOPIC, name="cancel-order-18", **task(18, minutes=30))["state"],
)
# This customer has less time.
client.replace(TOPIC, "cancel-order-18", **task(18, seconds=1))
print("cancel-order-18: rescheduled")
