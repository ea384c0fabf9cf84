"""Run by `.venv-kserve`: check manifests against the models of the Kubernetes client and the KServe SDK."""

import re
import sys

import kserve
import kubernetes.client
import yaml

KINDS = {
    "HorizontalPodAutoscaler": "V2HorizontalPodAutoscaler",
    "InferenceService": "V1beta1InferenceService",
}
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def model(name):
    return getattr(kubernetes.client, name, None) or getattr(kserve, name, None)


def check(value, kind, where):
    """Yield what of `value` is not as its model has it."""
    if inner := re.fullmatch(r"list\[(.+)\]", kind, re.IGNORECASE):
        if not isinstance(value, list):
            yield f"{where}: is no list"
            return
        for n, item in enumerate(value):
            yield from check(item, inner[1], f"{where}[{n}]")
    elif inner := re.fullmatch(r"dict(?:\[|\()str, (.+?)(?:\]|\))", kind):
        for key, item in value.items():
            yield from check(item, inner[1], f"{where}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
            # A quantity or a port by name is a string or a number.
            yield f"{where}: {value!r} is no {kind}"
    elif (found := model(kind)) is not None:
        names = {found.attribute_map[name]: name for name in found.openapi_types}
        for key in value.keys() - names.keys():
            yield f"{where}: {kind} has no field {key}"
        given = {names[key]: item for key, item in value.items() if key in names}
        try:
            found(**given)  # raises for a required field that is missing
        except (ValueError, TypeError) as error:
            yield f"{where}: {error}"
        for name, item in given.items():
            yield from check(item, found.openapi_types[name], f"{where}.{found.attribute_map[name]}")


def main():
    failures = []
    for path in sys.argv[1:]:
        with open(path) as file:
            documents = list(yaml.safe_load_all(file))
        for document in documents:
            name = KINDS.get(document["kind"])
            _, _, version = document["apiVersion"].rpartition("/")
            name = name or f"{version[0].upper()}{version[1:]}{document['kind']}"
            if model(name) is None:
                failures.append(f"{path}: there is no {name}")
                continue
            failures += [f"{path}: {found}" for found in check(document, name, document["kind"])]
    print("\n".join(failures))
    sys.exit(bool(failures))


main()
