"""How long `progpo view` takes to open 10,000 ALFWorld-like episodes, served and exported, in headless Chromium.

    python benchmarks/viewer.py [--generations 125] [--level full] [--run DIR] [--check]

The episodes are generated games played by an expert that errs (`viewer_episodes.py`), 10 groups of 8 a generation, or
those of a run. "open" is the wall time from the start of the navigation until the page is drawn and its controls work,
the largest of three tries; "group" is the time from a click on a group until its steps are on the screen. Both are to
be under 2 and 1 seconds. With --check the exit status is 1 when one is not.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

from viewer_episodes import write_run

from progpo_trl.viewer.export import export
from progpo_trl.viewer.site import ViewSite
from progpo_trl.viewer.sources import open_run
from progpo_trl.web.server import LocalServer

TARGETS = {"open": 2.0, "group": 1.0}  # seconds
TRIES = 3
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


def chromium():
    """A selenium driver, or None where Chromium, its driver or selenium is missing."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        return None
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for flag in (*FLAGS, "--window-size=1400,1000"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(driver))


def until(browser, script: str, seconds: float = 60) -> float:
    """Wait until `script` is true; returns how many seconds that took. TimeoutError when it never is."""
    begin = time.perf_counter()
    while not browser.execute_script(script):
        if time.perf_counter() - begin > seconds:
            raise TimeoutError(f"the page never came to: {script}")
        time.sleep(0.005)
    return time.perf_counter() - begin


def opening(browser, url: str) -> tuple[list[float], list[float]]:
    """Seconds until the page is interactive, and from a click until a group is shown, of each try."""
    pages, groups = [], []
    for _ in range(TRIES):
        browser.get("about:blank")
        browser.get(url)
        until(browser, "return document.documentElement.dataset.ready === 'yes'")
        pages.append(browser.execute_script("return performance.getEntriesByName('interactive')[0].startTime") / 1000)
        browser.execute_script("document.querySelector('#groups tbody tr:last-child td.task a').click()")
        groups.append(until(browser, "return document.querySelector('#group .cell') !== null"))
    return pages, groups


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=125, help="of 80 episodes (default: %(default)s)")
    parser.add_argument("--level", default="full", help="of the generated games (default: %(default)s)")
    parser.add_argument("--run", type=Path, help="a run to open instead")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    args = parser.parse_args(argv)
    browser = chromium()
    if browser is None:
        print("The benchmark of the viewer needs Chromium, chromedriver and selenium; nothing was measured.")
        return int(args.check)
    with browser, tempfile.TemporaryDirectory() as made:
        folder = args.run or Path(made) / "run"
        if args.run is None:
            write_run(folder, args.generations, level=args.level, steps=50, evaluated=40)
        met = measure(browser, folder, Path(made) / "run.html")
    return int(args.check and not met)


def measure(browser, folder: Path, file: Path) -> bool:
    """Print the numbers of one run; whether all targets are met."""
    run = open_run(folder)
    begin = time.process_time()
    for source in run.sources:
        source.index.refresh()
    indexing = time.process_time() - begin
    size = sum(source.index.path.stat().st_size for source in run.sources)
    episodes = sum(len(source.index.rows) for source in run.sources)
    print(f"{episodes:,} episodes, {size / 1e6:.0f} MB; index: {indexing:.2f} s of CPU once, when the command starts")
    server = LocalServer(ViewSite(run))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        met = report("served", *opening(browser, server.url))
        begin = time.perf_counter()
        browser.get(server.url + "/#q=never+seen+words")
        until(browser, "return document.getElementById('found').textContent.startsWith('0 groups')")
        print(f"  a search that finds nothing {time.perf_counter() - begin:.2f} s")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    begin = time.process_time()
    export(run, file, max_episodes=10**9)
    seconds = time.process_time() - begin
    print(f"exported in {seconds:.1f} s of CPU: {file.stat().st_size / 1e6:.1f} MB")
    met &= report("exported", *opening(browser, file.as_uri()))
    print(f"memory of this process at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return met


def report(kind: str, pages: list[float], groups: list[float]) -> bool:
    """Print two rows; whether both targets are met."""
    met = True
    for name, times in (("open", pages), ("group", groups)):
        good = max(times) < TARGETS[name]
        met &= good
        line = f"{kind:<9} {name:<6} median {statistics.median(times):.2f} s, largest {max(times):.2f} s"
        print(f"{line}; < {TARGETS[name]:g} s: {'met' if good else 'MISSED'}")
    return met


if __name__ == "__main__":
    sys.exit(main())
