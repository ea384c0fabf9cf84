"""Nodes under load: many clients over loopback; each node is a process, and the clients are another.

[serve.concurrency] (service_concurrency.py), [serve.forged] (service_forged.py), [serve.flood]
(service_flood.py)
"""

from report import Report, options
from service_concurrency import concurrency
from service_flood import flood
from service_forged import forged

CLAIMS = (concurrency, forged, flood)
"""The claims' functions: (report, is_quick)."""


def main() -> None:
    told = options(__doc__ or "")
    workload = "imdb-lstm on one thread; nodes, forwarder and clients share the machine"
    report = Report("service", workload, told)
    for claim in CLAIMS:
        claim(report, told.quick)
    report.finish()


if __name__ == "__main__":
    main()
