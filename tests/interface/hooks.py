"""What schemathesis is told about Punctual besides its document, what it is told to overlook and why, and the record of all it did.

Set by tests/integration/interface.rs: PUNCTUAL_TEST_TOPICS, the topics that are there, comma-separated; PUNCTUAL_TEST_DEAD, the ids of dead letters; PUNCTUAL_TEST_RECORD, the file for the record.
"""

import base64
import json
import os
import time
import uuid

import schemathesis
from hypothesis import strategies

TOPICS = os.environ["PUNCTUAL_TEST_TOPICS"].split(",")
DEAD = os.environ["PUNCTUAL_TEST_DEAD"].split(",")
RECORD = open(os.environ["PUNCTUAL_TEST_RECORD"], "w", encoding="utf-8")  # noqa: SIM115 - for the whole run
PROBLEM = "urn:punctual:problem:"
CHOICE = ["ids", "names", "name_prefix", "key", "key_base64"]
MOSTLY_TRUE = {"if-match": ["*"], "if-none-match": ['"nobody"', 'W/"nobody", "somebody-else"']}


# --- what makes requests that a cluster takes ---------------------------------------------------


@schemathesis.hook
def before_load_schema(context, raw_schema):
    schemas = raw_schema["components"]["schemas"]
    # Topics that are there. For a new task, another name is answered 422, and nothing else would be tried.
    there = {"type": "string", "enum": TOPICS}
    perhaps_there = {"anyOf": [there, {"$ref": "#/components/schemas/TopicName"}]}
    schemas["TaskRequest"]["properties"]["topic"] = there
    schemas["DeadRange"]["properties"]["topic"] = perhaps_there
    leave_out_tracked_tasks(raw_schema)
    for path, methods in raw_schema["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", []):
                # Preconditions that mostly hold: any other tag is answered 412, and nothing else would be tried.
                if parameter["name"].lower() in MOSTLY_TRUE:
                    parameter.pop("example", None)
                    parameter.pop("examples", None)
                    parameter["schema"] = {"type": "string", "enum": MOSTLY_TRUE[parameter["name"].lower()]}
                if parameter["name"] == "topic":
                    parameter["schema"] = there if method == "put" else perhaps_there
            # Examples of answers are of another cluster: as values of requests they would be refused.
            for response in operation["responses"].values():
                for body in response["content"].values():
                    body.pop("example", None)
                    body.pop("examples", None)
    # Dead letters that are there: some to drop, some to put back.
    for path, method, ids in [("/v1/dead/{id}", "delete", DEAD[::2]), ("/v1/dead/{id}/redrive", "post", DEAD[1::2])]:
        raw_schema["paths"][path][method]["parameters"][0]["schema"] = {"type": "string", "format": "uuid", "enum": ids}
    # Callers must bear members that they do not know; here, one that is not in the document is a mistake.
    for schema in schemas.values():
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)


def leave_out_tracked_tasks(raw_schema):
    """The oracle follows a task to its one record, and knows no attempts. Tests of their own call for consumers."""
    paths, schemas = raw_schema["paths"], raw_schema["components"]["schemas"]
    for path in [path for path in paths if path.endswith(("/finish", "/fail", "/extend", "/outcomes", "/pop"))]:
        del paths[path]
    for path in [path for path in paths if path.startswith("/v1/schedules/")]:
        # Their runs are tasks that no call has submitted.
        del paths[path]
    for path in [path for path in paths if path.startswith("/v1/topics/") and path.endswith(("/policy", "/pause", "/resume", "/callback"))]:
        # Tasks of a paused topic wait, a policy makes tasks tracked, and nothing may be called.
        del paths[path]
    # A choice needs a topic, `not_after` needs `when`, and no schema of a query can say so; nor
    # does the oracle read them.
    paths["/v1/tasks"]["get"]["parameters"] = [one for one in paths["/v1/tasks"]["get"]["parameters"] if one["name"] not in CHOICE]
    for name in CHOICE:
        del schemas["CancelRange"]["properties"][name]
    # A dead letter stays in its topic, as the oracle expects it.
    for name in ("RedriveRequest", "RedriveRange"):
        del schemas[name]["properties"]["to_topic"]
    put = paths["/v1/topics/{topic}/tasks/{name}"]["put"]
    put["parameters"] = [one for one in put["parameters"] if one["name"] not in {"when", "not_after"}]
    # The oracle knows one due time of each task.
    del paths["/v1/tasks/move"]
    for name in ["TaskRequest", "NamedTaskRequest"]:
        del schemas[name]["properties"]["ttr"], schemas[name]["properties"]["retry"], schemas[name]["dependentRequired"]
    del paths["/v1/tasks"]["post"]["requestBody"]["content"]["application/json"]["examples"]["tracked"]


@schemathesis.hook
def before_call(context, case, kwargs):
    """The oracle knows one due time of each task: only tasks that are not there are moved.

    A schema cannot say so, because links put the ids of answers into requests. What can be no id
    or name stays, to be refused.
    """
    given = case.path_parameters
    if case.method.upper() != "PATCH" or not given:
        return
    if is_uuid(given.get("id")):
        given["id"] = "01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f"
    if 1 <= len(str(given.get("name") or "").encode()) <= 255:
        given["name"] = "nobody"


def is_uuid(text):
    try:
        uuid.UUID(str(text))
    except ValueError:
        return False
    return True


# Of the past, of the next seconds, of the days and of the years ahead. (Times before 1970 are refused: see `is_beyond_schema`.)
schemathesis.openapi.format(
    "date-time",
    strategies.builds(
        "{}-{:02}-{:02}T{:02}:{:02}:{:02}{}{}".format,
        strategies.sampled_from([1971, 2024, 2026, 2027, 2028, 2030]),
        strategies.integers(1, 12),
        strategies.integers(1, 28),
        strategies.integers(0, 23),
        strategies.integers(0, 59),
        strategies.integers(0, 59),
        strategies.sampled_from(["", ".25", ".000001"]),
        strategies.sampled_from(["Z", "z", "+01:00", "-12:30"]),
    ),
)
schemathesis.openapi.format(
    "delay",
    strategies.one_of(
        strategies.builds("{}{}".format, strategies.integers(0, 900), strategies.sampled_from(["ms", "s", "m", "h", "d", " hours"])),
        strategies.builds("PT{}H{}M".format, strategies.integers(0, 900), strategies.integers(0, 59)),
        strategies.builds("{}h {}m".format, strategies.integers(0, 900), strategies.integers(0, 59)),
    ),
)


# --- exceptions ---------------------------------------------------------------------------------


def problem_of(response):
    """The type of the problem that was answered."""
    try:
        return json.loads(response.content)["type"].removeprefix(PROBLEM)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_refused_by_cluster(response):
    """Design, section 9: what the cluster refuses (an unknown topic, a record too large for its topic, a due time too far ahead) is 422. A schema cannot
    know these limits, so that a request which it takes for right may get this answer."""
    rules = {"unknown-topic", "record-too-large", "key-required", "too-far-ahead", "expires-too-early"}
    return response.status_code == 422 and problem_of(response) in rules


def is_beyond_schema(case, response):
    """JSON Schema counts the characters of a name, the API its bytes (255)."""
    if response.status_code != 400 or problem_of(response) != "invalid-value":
        return False
    if json.loads(response.content).get("field", "").split(".")[-1] != "name":
        return False
    names = [(case.path_parameters or {}).get("name")]
    if isinstance(case.body, dict):
        tasks = case.body.get("tasks", [case.body])
        names += [task.get("name") for task in tasks if isinstance(task, dict)]
    return any(isinstance(name, str) and len(name.encode()) > 255 for name in names)


def is_named_twice(response):
    """A key beside another name. The schemas of a header and of a body cannot speak of each other."""
    if response.status_code != 400 or problem_of(response) != "conflicting-fields":
        return False
    return json.loads(response.content).get("field") == "idempotency-key"


def is_precondition(response):
    """A precondition says which task a name stands for; no schema can say whether it does. A list without a tag is refused: it says nothing."""
    if response.status_code == 412:
        return problem_of(response) == "precondition-failed"
    if response.status_code != 400 or problem_of(response) != "invalid-value":
        return False
    answer = json.loads(response.content)
    return answer.get("field") in {"if-match", "if-none-match"} and "nothing was done:  is no list of tags" in answer["detail"]


def is_made_up_cursor(response):
    """A cursor is what the page before has given, for the same filters; no schema can say so."""
    return response.status_code == 400 and problem_of(response) == "invalid-value" and json.loads(response.content).get("field") == "cursor"


def is_refused(case, response):
    """What schemathesis does not take for a refusal, and is one. Design, section 9: a batch is answered 200, with a problem for each task that is wrong, so
    that the good ones are taken; and 413 when it has too many tasks."""
    if case.operation.definition.raw.get("operationId") != "submitBatch":
        return False
    if response.status_code == 413:
        return problem_of(response) == "batch-too-large"
    return response.status_code == 200 and any(result["status"] in (400, 422) for result in json.loads(response.content)["results"])


def is_cancelled_task(response):
    """Design, section 9: a cancelled task can still be looked up, so DELETE does not end the resource."""
    return response.status_code == 200 and json.loads(response.content).get("state") == "cancelled"


def is_busy(response):
    """A machine that stands still for seconds: nothing was done, and the document says so. The test counts them."""
    return response.status_code == 503 and problem_of(response) in {"busy", "unavailable"}


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """True where the failure is one."""
    kind = type(failure).__name__
    if kind == "RejectedPositiveData":
        return not (is_refused_by_cluster(response) or is_beyond_schema(case, response) or is_made_up_cursor(response) or is_named_twice(response) or is_precondition(response))
    if kind == "AcceptedNegativeData":
        return not is_refused(case, response)
    if kind == "UseAfterFree":
        return not is_cancelled_task(response)
    if kind == "ServerError":
        return not is_busy(response)
    return True


# --- the record ---------------------------------------------------------------------------------


def text_of(body):
    if body is None:
        return ""
    return base64.b64encode(body if isinstance(body, bytes) else body.encode()).decode()


def key_of(request):
    """The header of bytes or of text, as the node reads it."""
    key = request.headers.get("Idempotency-Key")
    return key.decode() if isinstance(key, bytes) else key


@schemathesis.hook
def after_call(context, case, response):
    line = {
        "method": response.request.method,
        "path": response.request.path_url,
        "body": text_of(response.request.body),
        "key": key_of(response.request),
        "status": response.status_code,
        "answer": text_of(response.content),
        "at": int(time.time() * 1000),
    }
    RECORD.write(json.dumps(line) + "\n")
    RECORD.flush()


@schemathesis.hook
def after_network_error(context, case, request):
    RECORD.write(json.dumps({"method": request.method, "path": request.path_url, "body": text_of(request.body), "key": key_of(request), "status": 0, "answer": "", "at": 0}) + "\n")
    RECORD.flush()
