"""Makes alerting rules that fire in a staged incident: rules.py RULES FACTOR > FASTER.

Every `for`, range, offset and step of a subquery is divided by FACTOR; a step is at least a second.
What the loop below cannot divide stands in OTHERS: numbers that are spans of time, or counts within
a range. Each replacement is told on stderr, and one that no longer fits ends the program.
"""

import re
import sys

import yaml

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SPAN = r"(\d+)([smhd])"

# What a rule has, what it becomes, and why: {n} is the number divided by FACTOR.
OTHERS = {
    "PunctualUnsettled": [("> 600", 600)],
    "PunctualPostgresDisk": [("4 * 3600", 4 * 3600)],
    "PunctualIssuerKeys": [("> 10", 10)],
    "PunctualAuthFile": [("> 30", 30)],
    "PunctualCredentials": [("> 30", 30), ("> 6", 6)],
    "PunctualPayloadKeyFile": [("> 30", 30)],
}
# Days are minutes here, and a count of every 15 s (a span of the program, which stays as it is)
# must not be late for an alert.
FIXED = {
    "PunctualNotCounted": [("> 300", "> 60")],
    "PunctualTopicPaused": [("> 86400", "> 60")],
}
FIXED_FOR = {"PunctualDeadLettersStay": "60s"}


def seconds(match, factor):
    return max(1, round(int(match[1]) * UNITS[match[2]] / factor))


def divided(expression, factor):
    def span(match):
        return f"{seconds(match, factor)}s"

    def brackets(match):
        return "[" + re.sub(SPAN, span, match[1]) + "]"

    expression = re.sub(r"\[([^\]]*)\]", brackets, expression)
    return re.sub(rf"(?<=offset ){SPAN}", span, expression)


def replaced(name, expression, old, new):
    if expression.count(old) < 1:
        sys.exit(f"error: {name} has no '{old}' any more: mend scripts/lib/alarms/rules.py")
    print(f"  {name}: '{old}' is '{new}'", file=sys.stderr)
    return expression.replace(old, new)


def faster(rule, factor):
    name = rule.get("alert", "")
    rule["expr"] = divided(rule["expr"], factor)
    for old, number in OTHERS.get(name, []):
        new = f"{number / factor:.3g}"
        new = f"> {new}" if old.startswith(">") else new
        rule["expr"] = replaced(name, rule["expr"], old, new)
    for old, new in FIXED.get(name, []):
        rule["expr"] = replaced(name, rule["expr"], old, new)
    if name in FIXED_FOR:
        print(f"  {name}: 'for: {rule['for']}' is '{FIXED_FOR[name]}'", file=sys.stderr)
        rule["for"] = FIXED_FOR[name]
    elif "for" in rule:
        rule["for"] = f"{seconds(re.fullmatch(SPAN, rule['for']), factor)}s"
    return rule


def main():
    path, factor = sys.argv[1], float(sys.argv[2])
    with open(path, encoding="utf-8") as file:
        rules = yaml.safe_load(file)
    for group in rules["groups"]:
        group["rules"] = [faster(rule, factor) for rule in group["rules"]]
    yaml.safe_dump(rules, sys.stdout, sort_keys=False, width=1000)


main()
