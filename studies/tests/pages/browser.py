"""Chromium without a window, for tests of pages: driven over a pair of pipes by its DevTools protocol.

Nothing but the standard library is needed, and no port is opened.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
ALONE = ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
LIMIT = 30.0  # seconds that the browser may take to answer


def executable():
    """The browser's path, or None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. `errors` has what went wrong on the page that is open: in scripts, or with what it wanted to load."""

    def __init__(self, path, folder):
        ours, theirs = os.pipe(), os.pipe()  # what it reads, and what it writes

        def connect():
            read, write = os.dup(ours[0]), os.dup(theirs[1])  # first out of the way of 3 and 4, where it looks for them
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [path, *QUIET, *ALONE, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=connect, **quiet)  # noqa: PLW1509
        os.close(ours[0])
        os.close(theirs[1])
        self.to, self.answers = ours[1], theirs[0]
        self.rest, self.events, self.errors = b"", [], []
        self.numbers, self.session = itertools.count(1), None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{part}.enable")

    def send(self, method, **given):
        """Ask for something, and wait for the answer."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self):
        limit = time.monotonic() + LIMIT
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, limit - time.monotonic()))
            part = os.read(self.answers, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("the browser has ended" if ready else "the browser does not answer")
            self.rest += part
        first, _, self.rest = self.rest.partition(b"\0")
        return json.loads(first)

    def _note(self, event):
        method, said = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in {"error", "assert"}:
            self.errors.append(str(said["args"]))
        elif method == "Network.loadingFailed" and not said.get("canceled"):  # by the next page
            self.errors.append(said["errorText"])
        self.events.append(method)

    def open(self, page, width, scheme="light", height=900, scale=1.0):
        """Show a file in a window of this width, in a light or dark scheme, and wait until all of it is there."""
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **screen)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.errors.clear()
        self.send("Page.navigate", url=Path(page).resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._note(self._next())

    def ask(self, expression):
        """The value of a JavaScript expression, once it is known."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def picture(self, path, top=0, height=None):
        """Save what the page looks like, all of it or a part, as a PNG file."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": top,
            "width": size["width"],
            "height": min(height or 1e9, size["height"] - top),
            "scale": 1,
        }
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser():
    """A browser with nothing in its profile; it is gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        one = Browser(executable(), folder)
        try:
            yield one
        finally:
            one.session = None
            with contextlib.suppress(RuntimeError, OSError, subprocess.TimeoutExpired):
                one.send("Browser.close")
                one.process.wait(10)
            one.process.kill()
            one.process.wait()
            os.close(one.to)
            os.close(one.answers)
