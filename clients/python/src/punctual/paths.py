"""The paths of requests."""

import urllib.parse


def quoted(part):
    return urllib.parse.quote(str(part), safe="")


def id_path(task_id):
    return f"/v1/tasks/{quoted(task_id)}"


def topic_path(topic):
    return f"/v1/topics/{quoted(topic)}"


def name_path(topic, name):
    return f"{topic_path(topic)}/tasks/{quoted(name)}"


def callback_path(topic):
    return f"{topic_path(topic)}/callback"


def policy_path(topic):
    return f"{topic_path(topic)}/policy"


def schedule_path(topic, name):
    return f"/v1/schedules/{quoted(topic)}/{quoted(name)}"
