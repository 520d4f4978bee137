#!/usr/bin/env python3
"""check.py: the manifests beside it are such as Kubernetes takes, as far as that is seen from here.

    examples/kubernetes/check.py

It knows the fields that these manifests use, and no cluster: a misspelt field, a volume that is not
there, a resource that nobody offers, or a limit of memory below what the budget needs is told, and
the exit status is 1. Needs PyYAML; without it it says so and ends well.
"""

import pathlib
import re
import sys

try:
    import yaml
except ImportError:
    print("kubernetes: SKIPPED: PyYAML is missing: apt-get install python3-yaml")
    sys.exit(0)

# What Redis has beside its heap: libraries, its threads' stacks.
PROGRAM_BYTES = 64 << 20
OBJECT = {"apiVersion", "kind", "metadata", "spec"}
METADATA = {"name", "namespace", "labels"}
POD = set("securityContext initContainers containers volumes priorityClassName tolerations".split())
CONTAINER = set(
    "name image command args ports resources securityContext volumeMounts".split()
)
SECURITY = set(
    "runAsUser runAsGroup fsGroup runAsNonRoot seccompProfile privileged allowPrivilegeEscalation "
    "capabilities".split()
)
MOUNT = {"name", "mountPath", "readOnly"}
VOLUME = {"name", "emptyDir", "hostPath"}
UNITS = {"": 1, "M": 1 << 20, "Mi": 1 << 20, "G": 1 << 30, "Gi": 1 << 30}


def in_bytes(text):
    """Bytes of a size as Kubernetes (Mi) or `deepheap run` (M) writes it."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text)).groups()
    return int(number) * UNITS[unit]


class Check:
    """The complaints about one manifest."""

    def __init__(self, name):
        self.name, self.wrong, self.wanted, self.offered = name, [], set(), set()

    def that(self, is_right, what):
        """Notes what is not right."""
        if not is_right:
            self.wrong.append(f"{self.name}: {what}")

    def fields(self, value, known, where):
        """That an object has fields of these names only."""
        for field in set(value) - known:
            self.that(False, f"{where} has no field {field}")

    def manifest(self, value):
        """That a manifest is a pod or makes pods."""
        self.fields(value, OBJECT, "a manifest")
        self.fields(value["metadata"], METADATA, "metadata")
        if value["kind"] == "Pod":
            self.that(value["apiVersion"] == "v1", "a Pod is of v1")
            return self.pod(value["spec"])
        self.that(value["kind"] == "DaemonSet" and value["apiVersion"] == "apps/v1", "another kind")
        template = value["spec"]["template"]
        labels = value["spec"]["selector"]["matchLabels"].items()
        self.that(labels <= template["metadata"]["labels"].items(), "the selector finds no pod")
        return self.pod(template["spec"])

    def pod(self, spec):
        """That a pod's containers find what they name."""
        self.fields(spec, POD, "a pod")
        self.fields(spec.get("securityContext", {}), SECURITY, "a security context")
        volumes = set()
        for volume in spec.get("volumes", []):
            self.fields(volume, VOLUME, "a volume")
            volumes.add(volume["name"])
        for container in spec.get("initContainers", []) + spec["containers"]:
            self.fields(container, CONTAINER, "a container")
            self.fields(container.get("securityContext", {}), SECURITY, "a security context")
            for mount in container.get("volumeMounts", []):
                self.fields(mount, MOUNT, "a mount")
                self.that(mount["name"] in volumes, f"no volume is called {mount['name']}")
            self.resources(container)

    def resources(self, container):
        """That devices are offered, and that the budget fits the limit."""
        resources = container["resources"]
        self.fields(resources, {"requests", "limits"}, "resources")
        limits, requests = resources["limits"], resources.get("requests", {})
        for name in [name for name in limits if "/" in name]:
            self.wanted.add(name)
            self.that(requests.get(name, limits[name]) == limits[name], f"{name} is not one number")
        arguments = container.get("args", [])
        for flag, device in zip(arguments, arguments[1:]):
            if flag == "--device":
                domain = next(it for it in arguments if it.startswith("--domain=")).split("=")[1]
                self.offered.add(f"{domain}/{yaml.safe_load(device)['name']}")
        command = container.get("command", [])
        if "--ram" in command:
            needed = in_bytes(command[command.index("--ram") + 1]) + PROGRAM_BYTES
            least, limit = needed * 105 // 100, in_bytes(limits["memory"])
            self.that(limit >= least, f"memory is {limit} bytes, and the budget needs {least}")


def main():
    """Checks all manifests of this folder together."""
    checks = []
    for path in sorted(pathlib.Path(__file__).parent.glob("*.yaml")):
        check = Check(path.name)
        for value in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            check.manifest(value)
        checks.append(check)
    wrong = [line for check in checks for line in check.wrong]
    offered = set().union(*(check.offered for check in checks))
    wanted = set().union(*(check.wanted for check in checks))
    wrong += [f"nobody offers {name}" for name in wanted - offered]
    print("\n".join(wrong) or f"kubernetes: {len(checks)} manifests are as they should be")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
