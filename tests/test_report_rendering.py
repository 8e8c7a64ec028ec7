"""The page in a real browser, in both colour schemes: drawn, nothing on the console, readable on its background."""

import os
import shutil
import subprocess
import time

import matplotlib.image
import pytest
from synthetic_runs import write_run, write_vision_run

from fourierformer.report import write_report
from fourierformer.results import collect

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
SCHEMES = {"light": "1", "dark": "0"}  # blink's numbers for prefers-color-scheme


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    for seed in (1, 2, 3):
        write_run(root / "runs", "softmax", seed, 60 + seed)
        write_run(root / "runs", "fourier", seed, 57 + seed)
        write_vision_run(root / "runs", "softmax", seed, 92 + seed / 2, ema=True)
        write_vision_run(root / "runs", "fourier", seed, 93 + seed / 2, ema=True)
    write_run(root / "runs", "gaussian", 1, state="failed", error="out of memory", traceback="Traceback", step=70)
    return write_report(collect(root / "runs"), root / "report.html")


def photograph(page, folder, scheme: str, width: int):
    """(the picture as an array of 0..1, what the browser logged)."""
    picture = folder / f"{scheme}.png"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--enable-logging=stderr"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # no network: a page that needs some fails here
    command += [f"--window-size={width},1600", f"--screenshot={picture}", page.as_uri()]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": str(folder)}
    ) as process:
        try:
            log = process.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    for _ in range(20):  # a wrapper script may return a moment before the file is whole
        if picture.exists():
            break
        time.sleep(0.1)
    return matplotlib.image.imread(picture)[..., :3], log


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1100, 500])
def test_page_renders(page, tmp_path, scheme, width):
    picture, log = photograph(page, tmp_path, scheme, width)
    assert "CONSOLE" not in log
    background = picture[2, 2]
    assert background.mean() > 0.9 if scheme == "light" else background.mean() < 0.15
    ink = abs(picture - background).max(axis=2) > 0.3
    assert 0.005 < ink.mean() < 0.5  # neither blank nor flooded
    # ink in every quarter of the page's height: the charts are drawn too, not only the heading
    assert all(quarter.any() for quarter in (ink[i * 400 : (i + 1) * 400] for i in range(4)))
    # two series in two hues somewhere: orange has more red than blue, blue the other way round
    warm, cold = picture[..., 0] - picture[..., 2], picture[..., 2] - picture[..., 0]
    assert (warm > 0.35).sum() > 100
    assert (cold > 0.35).sum() > 100
