"""The status page in a real browser: Debian's Chromium, driven over WebDriver's own HTTP protocol."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from live_server import ask, infer, running, save_models, vector

from tensorlogic.serve import status_page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--window-size=1100,1300"]  # fmt: skip


class Browser:
    """A browser that is told what to do by requests to its driver."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [DRIVER, f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={folder}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        for _ in range(100):
            try:
                self.session = self("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, session=False)[
                    "sessionId"
                ]
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the driver does not answer")

    def __call__(self, method, path, body=None, *, session=True):
        url = f"http://127.0.0.1:{self.port}" + (f"/session/{self.session}" if session else "") + path
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=60
        ) as reply:
            return json.load(reply)["value"]

    def run(self, script):
        return self("POST", "/execute/sync", {"script": f"return {script}", "args": []})

    def until(self, script):
        """Wait until a script gives something true, and return it."""
        for _ in range(200):
            if found := self.run(script):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{script}: {self.run('document.body.innerText')}")

    def close(self):
        try:
            self("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(20)


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver")
def test_the_page_shows_models_and_figures_and_tries_a_model(tmp_path):
    with running(save_models(tmp_path / "models")) as server:
        browser = Browser(tmp_path / "profile")
        try:
            browser("POST", "/url", {"url": f"http://127.0.0.1:{server.port}/"})
            browser.until("document.querySelectorAll('#models tr').length === 5")
            for n in range(50):
                infer(server.port, "double", vector(n))
            assert int(
                browser.until(
                    "(document.querySelector('#models tr:nth-child(2) td:nth-child(4)') || {}).textContent >= 50 && 50"
                )
            )
            assert "double" in browser.run("document.querySelector('#models').innerText")
            browser.run("(get('model').selectedIndex = 1, get('model').onchange())")
            assert json.loads(browser.run("get('body').value"))["inputs"][0]["name"] == "x"
            browser.run(
                "get('body').value = JSON.stringify({inputs: [{name: 'x', shape: [2], datatype: 'FP32', data: [3, 4]}]})"
            )
            browser.run("get('send').click()")
            answer = browser.until("get('answer').textContent.includes('outputs') && get('answer').textContent")
            assert answer.startswith("200") and "[6,8]" in answer.replace(".0", "")
            browser.run("(get('body').value = '{', get('send').click())")
            assert "E470" in browser.until("get('answer').textContent.includes('code') && get('answer').textContent")
            wrong = [e for e in browser("POST", "/se/log", {"type": "browser"}) if "Security" in e["message"]]
            assert not wrong  # its own policy lets all of it run
            (tmp_path / "page.png").write_bytes(base64.b64decode(browser("GET", "/screenshot")))
            assert (tmp_path / "page.png").stat().st_size > 20_000
        finally:
            browser.close()


def test_the_page_has_nothing_from_elsewhere_and_a_policy_that_says_so(tmp_path):
    with running(save_models(tmp_path)) as server:
        found = ask(server.port, "GET", "/")
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "unsafe" not in status_page.POLICY
    assert b"http://" not in found.body and b"https://" not in found.body and b" src=" not in found.body
