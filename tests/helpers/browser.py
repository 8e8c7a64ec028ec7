"""A page in headless Chromium without a network: its picture, what the browser logged, what its layout measures."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
SCHEMES = {"light": "1", "dark": "0"}  # blink's numbers for prefers-color-scheme
PATIENCE = 90

# Elements that are wider than the window although they are not meant to scroll, and the size of every picture.
MEASURE = """<script>addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  const outside = [...document.querySelectorAll("body *")].filter(
    element => !element.closest(".scroll, pre, svg") && box(element).right > innerWidth + 1);
  parent.postMessage(JSON.stringify({
    window: innerWidth,
    page: document.documentElement.scrollWidth,
    outside: outside.slice(0, 5).map(element => element.outerHTML.slice(0, 120)),
    charts: [...document.querySelectorAll("figure > svg, figure > .scroll > svg")]
      .map(svg => [box(svg).width, box(svg).height]),
    anchors: [...document.querySelectorAll("nav a, header a")].map(a => document.querySelector(a.hash) !== null),
  }), "*");
});</script></body>"""
FRAME = """<!DOCTYPE html><script>addEventListener("message", event => document.title = event.data)</script>
<iframe src="{page}" style="width: {width}px; height: 800px; border: 0"></iframe>"""


def photograph(page: Path, folder: Path, scheme: str, width: int, height: int = 1600) -> tuple[np.ndarray, str]:
    """(the picture as an array of 0..1, what the browser logged)."""
    picture = folder / f"{scheme}-{width}.png"
    log = _browse(page, folder, f"--screenshot={picture}", f"--window-size={width},{height}", _scheme(scheme))[1]
    for _ in range(20):  # a wrapper script may return a moment before the file is whole
        if picture.exists():
            break
        time.sleep(0.1)
    return matplotlib.image.imread(picture)[..., :3], log


def layout(page: Path, folder: Path, width: int) -> dict:
    """What MEASURE finds in a frame of this width: a window of the browser cannot be as narrow as a telephone."""
    measured, frame = folder / "measured.html", folder / "frame.html"
    measured.write_text(page.read_text(encoding="utf-8").replace("</body>", MEASURE), encoding="utf-8")
    frame.write_text(FRAME.format(page=measured.as_uri(), width=width), encoding="utf-8")
    html = _browse(frame, folder, "--dump-dom", "--window-size=1600,1000", "--virtual-time-budget=5000")[0]
    title = re.search(r"<title>(.*?)</title>", html, re.DOTALL)
    assert title, html[-2000:]
    return json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def _scheme(name: str) -> str:
    return f"--blink-settings=preferredColorScheme={SCHEMES[name]}"


def _browse(page: Path, folder: Path, *options: str) -> tuple[str, str]:
    """(what the browser printed, what it logged)."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # a page that needs the network fails here
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [*command, *options, page.as_uri()], env={**os.environ, "HOME": str(folder)}, **settings
    ) as process:
        try:
            return process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
