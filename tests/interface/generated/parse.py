"""Parses answers with a generated client: parse.py MODULE FILE.

Each line of the file is {"schema": .., "answer": ..}. Prints the number of parsed answers.
"""

import importlib
import json
import sys

models = importlib.import_module(sys.argv[1])
count, failures = 0, []
with open(sys.argv[2], encoding="utf-8") as lines:
    for line in lines:
        case = json.loads(line)
        try:
            parsed = getattr(models, case["schema"]).from_dict(case["answer"])
            assert parsed is not None and parsed.to_dict()
            count += 1
        except Exception as error:  # noqa: BLE001 - whatever generated code raises
            failures.append(f"{error!r} in {line}")
print(count)
sys.exit("\n".join(failures[:5]) or 0)
