"""A headless Chromium driven by the DevTools protocol over a pipe: no driver, no port, no package.

https://chromedevtools.github.io/devtools-protocol/; messages are JSON texts ended by a zero byte, the browser reads
them from file descriptor 3 and answers on 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "no Chromium is installed: apt-get install chromium, or leave these tests out with -m 'not browser'"
# Descriptors 3 and 4 are the browser's by the protocol: a process in between puts ours there.
PLACE = """
import os, sys
from fcntl import F_DUPFD, fcntl
read, write = (fcntl(int(word), F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40}


class Chromium:
    """One browser with one page; `errors` gathers console errors and blocked requests."""

    def __init__(self, profile: Path) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        assert program, INSTALL
        (read, to_browser), (from_browser, write) = os.pipe(), os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLACE, str(read), str(write), program, *flags],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read)
        os.close(write)
        self._to, self._from = to_browser, from_browser
        self._rest, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(60)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._events.append(answer)

    def _read(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))

    def open(self, url: str, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a page at a width in CSS pixels, with light or dark as the preferred scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        self.ask("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read(60))

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, as a person would."""
        code = KEYS[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            pressed = {"text": text} if text and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **pressed)

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        content = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(content["data"]))

    @property
    def errors(self) -> list[str]:
        """Console errors, uncaught exceptions and blocked or failed loads since the page was opened."""
        self.run("1")  # what the browser has said by now is read
        results = []
        for event in self._events:
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Runtime.consoleAPICalled" and details["type"] in ("error", "assert")
            ):
                results.append(json.dumps(details)[:500])
            elif method == "Log.entryAdded" and details["entry"]["level"] == "error":
                results.append(details["entry"]["text"])
        return results

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, but for its own and those inside it."""
        self.run("1")
        urls = [e["params"]["request"]["url"] for e in self._events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "file:"))]

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        """End the browser and all its processes."""
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
