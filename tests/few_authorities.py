"""Trust a single certificate authority in tests and in the processes that they start.

To load all of certifi's takes 25 ms of processor time for each client and each node: minutes in all.
"""

import os
import tempfile
from pathlib import Path

import certifi

_LAST_LINE = "-----END CERTIFICATE-----\n"


def trust_few(folder: Path) -> None:
    """From now on OpenSSL's default is one of certifi's authorities, unless the caller has chosen some."""
    if "SSL_CERT_FILE" in os.environ:
        return
    path = folder / "authority.pem"
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition(_LAST_LINE)
    handle, temporary = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(first + end)
    os.replace(temporary, path)  # several processes may write it
    os.environ["SSL_CERT_FILE"] = str(path)
