"""Browsers without a window: each opens a file, and says what a script in it found.

Chromium prints the page when its scripts have run; Firefox is asked through Marionette, its own protocol for automation
(firefox-source-docs.mozilla.org/testing/marionette/Protocol.html).
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from html import unescape
from pathlib import Path
from typing import Any

SECONDS = 120  # that a browser may take, on a busy machine
_NAMES = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "firefox": ("firefox", "firefox-esr"),
}


def installed(browser: str) -> str | None:
    """The path of a browser's program."""
    return next((found for name in _NAMES[browser] if (found := shutil.which(name))), None)


def found_in(browser: str, page: Path, folder: Path) -> dict[str, Any]:
    """Open a page and wait until its body has the attribute ``data-found``, which is JSON.  folder: for a profile."""
    program = installed(browser)
    assert program is not None
    return _chromium(program, page, folder) if browser == "chromium" else _firefox(program, page, folder)


def _chromium(program: str, page: Path, folder: Path) -> dict[str, Any]:
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000"]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    text = re.search(r'data-found="(.*?)"', done.stdout)
    assert text is not None, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(unescape(text[1]))
    return found


def _firefox(program: str, page: Path, folder: Path) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    profile = folder / "profile"
    profile.mkdir()
    (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
    command = [program, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with _connection(port) as connection:
            ask = _Marionette(connection).ask
            ask("WebDriver:NewSession", {})
            ask("WebDriver:Navigate", {"url": page.as_uri()})
            script = "return document.body.getAttribute('data-found')"
            stop = time.monotonic() + SECONDS
            while (text := ask("WebDriver:ExecuteScript", {"script": script, "args": []})["value"]) is None:
                assert time.monotonic() < stop, "the page did not finish"
                time.sleep(0.1)
            found: dict[str, Any] = json.loads(text)
            return found
    finally:
        process.kill()
        process.wait()


def _connection(port: int) -> socket.socket:
    stop = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        except OSError:
            if time.monotonic() > stop:
                raise
            time.sleep(0.1)


class _Marionette:
    """Commands and answers: the length of a JSON list, a colon, and the list."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.unread, self.count = connection, b"", 0
        self._read()  # its greeting

    def ask(self, command: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        text = json.dumps([0, self.count, command, parameters]).encode()
        self.connection.sendall(b"%d:%s" % (len(text), text))
        _, _, error, answer = self._read()
        assert error is None, error
        return dict(answer)

    def _read(self) -> Any:
        while b":" not in self.unread:
            self._more()
        length, _, self.unread = self.unread.partition(b":")
        while len(self.unread) < int(length):
            self._more()
        text, self.unread = self.unread[: int(length)], self.unread[int(length) :]
        return json.loads(text)

    def _more(self) -> None:
        part = self.connection.recv(1 << 16)
        assert part, "the browser ended"
        self.unread += part
