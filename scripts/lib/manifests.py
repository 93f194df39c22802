"""manifests.py VERSION FILE..: checks manifests against the schemas of Kubernetes VERSION and the
settings of Punctual, and the values of the chart against their schema.

Run by scripts/check-kubernetes, in an environment with kubernetes-validate.
"""

import json
import re
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "deploy/helm/punctual"
# Those that Kubernetes itself does not know.
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
SETTINGS = set(re.findall(r"`(PUNCTUAL_[A-Z_]+)`", (ROOT / "docs/reference/settings.md").read_text()))

problems = []


def expect(truth, problem):
    if not truth:
        problems.append(problem)


def check_schema(where, manifest, version):
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        path = ".".join(map(str, error.path))
        problems.append(f"{where}: {path}: {error.message}")


def check_pod(where, pod):
    security = pod["securityContext"]
    expect(security["runAsNonRoot"] and security["runAsUser"] > 0, f"{where}: runs as root")
    expect(not pod["automountServiceAccountToken"], f"{where}: has a token for Kubernetes")
    # The variables of a service `punctual` would look like settings.
    expect(not pod["enableServiceLinks"], f"{where}: has variables of services")
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        security = container["securityContext"]
        expect(security["readOnlyRootFilesystem"], f"{where}: can write its root")
        expect(not security["allowPrivilegeEscalation"], f"{where}: can become root")
        expect(security["capabilities"]["drop"] == ["ALL"], f"{where}: has capabilities")
        expect("memory" in container["resources"]["limits"], f"{where}: has no limit of memory")
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        expect(set(mounts) == volumes, f"{where}: volumes {volumes}, mounts {set(mounts)}")
        for variable in container["env"]:
            check_variable(where, variable, mounts.values())


def check_variable(where, variable, folders):
    name, value = variable["name"], str(variable.get("value", ""))
    expect(name == "POD_IP" or name in SETTINGS, f"{where}: {name} is not a setting")
    if name.endswith("_FILE"):
        expect(any(value.startswith(f"{folder}/") for folder in folders), f"{where}: {value} is not mounted")


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def check_node(where, pod):
    node = pod["containers"][0]
    settings = {variable["name"]: variable.get("value") for variable in node["env"]}
    pause = int(node["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = seconds(settings["PUNCTUAL_DRAIN_TIMEOUT"]) + pause + 25
    expect(pod["terminationGracePeriodSeconds"] >= needed, f"{where}: is killed before {needed} s")
    ports = {port["name"]: str(port["containerPort"]) for port in node["ports"]}
    for name, setting in (("api", "PUNCTUAL_LISTEN"), ("operator", "PUNCTUAL_OPERATOR_LISTEN")):
        expect(settings[setting] == f"0.0.0.0:{ports[name]}", f"{where}: {setting} is not the port {name}")
    scheme = "HTTPS" if "PUNCTUAL_TLS_CERTIFICATE_FILE" in settings else "HTTP"
    for probe, paths in (("livenessProbe", {"/livez"}), ("readinessProbe", {"/readyz", "/livez"})):
        get = node[probe]["httpGet"]
        expect(get["path"] in paths and get["port"] == "operator", f"{where}: {probe} asks {get}")
        expect(get["scheme"] == scheme, f"{where}: {probe} does not speak {scheme}")


def labels_of(manifest):
    return manifest["spec"]["template"]["metadata"]["labels"].items()


def check_selectors(manifests):
    """Each selector of pods finds the node, and not the migration."""
    found = {manifest["kind"]: manifest for manifest in manifests}
    for manifest in manifests:
        spec = manifest["spec"]
        selector = spec.get("podSelector") or spec.get("selector") or {}
        selector = selector.get("matchLabels", selector)
        if manifest["kind"] in ("ServiceMonitor",) or not selector or "Deployment" not in found:
            continue
        where = f"{manifest['kind']} {manifest['metadata']['name']}"
        expect(selector.items() <= labels_of(found["Deployment"]), f"{where}: does not select the node")
        expect("Job" not in found or not selector.items() <= labels_of(found["Job"]), f"{where}: selects the Job")


def check_placement(pods):
    """The migration comes first: it must find a machine wherever the nodes do."""
    for choice in ("nodeSelector", "tolerations", "affinity"):
        chosen = {where: pod.get(choice) for where, pod in pods.items()}
        same = all(pod == next(iter(chosen.values())) for pod in chosen.values())
        expect(same, f"{choice} differs: {chosen}")


def check_values():
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema)
    text = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"', text, re.MULTILINE).group(1)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    expect(chart["appVersion"] == version, f"Chart.yaml: appVersion is not {version}")


def main(version, files):
    manifests = [m for file in files for m in yaml.safe_load_all(Path(file).read_text()) if m]
    kinds = {manifest["kind"] for manifest in manifests}
    needed = {"Job", "Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service"}
    expect(needed <= kinds, f"missing: {needed - kinds}")
    pods = {}
    for manifest in manifests:
        where = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] not in CUSTOM:
            check_schema(where, manifest, version)
        if manifest["kind"] in ("Job", "Deployment"):
            pods[where] = manifest["spec"]["template"]["spec"]
            check_pod(where, pods[where])
        if manifest["kind"] == "Deployment":
            check_node(where, manifest["spec"]["template"]["spec"])
    check_selectors(manifests)
    check_placement(pods)
    check_values()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
