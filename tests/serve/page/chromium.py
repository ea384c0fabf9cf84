"""A Chromium without a window, driven by the DevTools protocol over a pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, and open nothing but their own page
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """The browser that is installed; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page of the browser; `events` are what the protocol told, in order."""

    def __init__(self, browser: "Chromium", target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol. Raises RuntimeError where it fails."""
        return self._browser.call(method, parameters, self._session)

    def close(self) -> None:
        """Leave the page."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})

    def open(self, url: str) -> None:
        """Go there, and return once the page has loaded."""
        n = len(self.events)
        self.call("Page.navigate", url=url)
        self._browser.wait_for(
            lambda: any(e["method"] == "Page.loadEventFired" for e in self.events[n:]), "load"
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression once it is true."""
        found: list[Any] = []

        def is_true() -> bool:
            found.append(self.run(script))
            return bool(found[-1])

        self._browser.wait_for(is_true, script)
        return found[-1]

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press and let go of a key."""
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def emulate(self, width: int, height: int, features: Mapping[str, str] | None = None) -> None:
        """A window of that size, and media features such as a dark colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        given = [{"name": name, "value": value} for name, value in (features or {}).items()]
        self.call("Emulation.setEmulatedMedia", features=given)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """What is seen, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def requested(self) -> list[str]:
        """The URLs that the page asked for."""
        return [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the policy or the network refused."""
        found = []
        for event in self.events:
            given = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(given["exceptionDetails"].get("exception", given)))
            if event["method"] == "Log.entryAdded" and given["entry"]["level"] == "error":
                found.append(given["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
                found.append(str(given["args"]))
        return found


class Chromium:
    """A browser of its own, with an empty profile."""

    def __init__(self, path: str, profile: Path) -> None:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        self._in, self._out = read_here, write_here
        self._rest = b""
        self._n = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._tabs: dict[str, Tab] = {}

        command = [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # The browser reads commands at descriptor 3 and writes at 4.
        shell = 'exec "$@" 3<&"$PLIANT_READ" 4>&"$PLIANT_WRITE"'
        environment = os.environ | {"PLIANT_READ": str(read_there), "PLIANT_WRITE": str(write_there)}
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(read_there, write_there),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_there)
        os.close(write_there)

    def tab(self) -> Tab:
        """A new page, whose events are listened to."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._tabs[session] = found = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            found.call(f"{domain}.enable")
        return found

    def call(self, method: str, parameters: Mapping[str, Any], session: str | None = None) -> dict[str, Any]:
        self._n += 1
        number = self._n
        message: dict[str, Any] = {"id": number, "method": method, "params": dict(parameters)}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self.wait_for(lambda: number in self._answers, method, is_polled=False)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        found: dict[str, Any] = answer["result"]
        return found

    def wait_for(self, is_so: Any, what: str, is_polled: bool = True) -> None:
        """Read what the browser says until `is_so()`; what is polled is asked again twenty times a second."""
        ends_s = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > ends_s:
                raise TimeoutError(f"the browser did not come to this within {PATIENCE_S:g} s: {what}")
            self._read(0.05 if is_polled else PATIENCE_S)

    def close(self) -> None:
        with suppress(RuntimeError, TimeoutError, OSError):
            self.call("Browser.close", {})
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self, most_s: float) -> None:
        if not select.select([self._in], [], [], most_s)[0]:
            return
        data = os.read(self._in, 1 << 20)
        if not data:
            raise RuntimeError("the browser has ended.")
        *whole, self._rest = (self._rest + data).split(b"\0")
        for one in whole:
            message = json.loads(one)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._tabs:
                self._tabs[message["sessionId"]].events.append(message)


@contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser until the context ends."""
    path = find_chromium()
    assert path is not None
    with tempfile.TemporaryDirectory(prefix="pliant-chromium-", ignore_cleanup_errors=True) as profile:
        browser = Chromium(path, Path(profile))
        try:
            yield browser
        finally:
            browser.close()
