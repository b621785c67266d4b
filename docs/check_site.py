"""Open the built site in headless Chromium: `make docs-check`, or `python docs/check_site.py`.

Every internal link must lead to a page, and to a place on it; every figure must load; every formula
must be drawn; and no page may ask another host for anything. Pages are served to the browser from
this machine, and it can reach no other. Exits with 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Where the browser finds the script that looks at the pages, and where it reports.
CHECK, REPORT = "/__check.html", "/__report"
SECONDS = 300

#: Opens one page after another in a frame and tells what it sees.
SCRIPT = """<!doctype html><body><script>
const pages = PAGES;
const wait = ms => new Promise(done => setTimeout(done, ms));
async function look(page) {
  const frame = document.createElement("iframe");
  frame.style = "width: 1200px; height: 900px";
  const loaded = new Promise(done => { frame.onload = done; });
  frame.src = "/" + page;
  document.body.append(frame);
  await loaded;
  const view = frame.contentWindow, seen = frame.contentDocument;
  const formulas = () => seen.querySelectorAll(".math").length;
  const drawn = () => seen.querySelectorAll(".math mjx-container svg").length;
  for (const image of seen.images) image.loading = "eager";
  for (let i = 0; i < 200; i++) {
    if (drawn() >= formulas() && [...seen.images].every(image => image.complete)) break;
    await wait(50);
  }
  const found = {
    page, formulas: formulas(), drawn: drawn(), images: seen.images.length,
    broken: [...seen.images].filter(image => !image.naturalWidth).map(image => image.src),
    // MathJax draws a command that it does not know in red.
    errors: [...seen.querySelectorAll("[data-mjx-error]")].map(e => e.dataset.mjxError)
      .concat([...seen.querySelectorAll("mjx-container [fill=red]")].map(() => "unknown command")),
    elsewhere: view.performance.getEntriesByType("resource").map(entry => entry.name)
      .filter(name => !name.startsWith(location.origin) && !name.startsWith("data:")),
  };
  frame.remove();
  return found;
}
(async () => {
  const found = [];
  for (const page of pages) found.push(await look(page));
  await fetch("REPORT", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Page(HTMLParser):
    """The links of a page, and the places on it that links can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links and places."""
        given = dict(attrs)
        self.places |= {given[name] or "" for name in ("id", "name") if name in given}
        for name in ("href", "src"):
            if given.get(name):
                self.links.append(given[name] or "")


class Handler(SimpleHTTPRequestHandler):
    """Serves the site and the script, and takes the report."""

    script: bytes
    report: list[Any]
    reported: threading.Event

    def do_GET(self) -> None:
        """A file of the site, or the script."""
        if self.path != CHECK:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.script)
        return None

    def do_POST(self) -> None:
        """The report."""
        self.report += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.reported.set()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def broken_links(site: Path) -> Iterator[str]:
    """Internal links that lead nowhere, and parts of pages that come from elsewhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # another site, which cannot be tried without a network
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{path.relative_to(site)}: {link} leads nowhere"
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].places}:
                yield f"{path.relative_to(site)}: {link} leads to no place on that page"


def look(site: Path, browser: str) -> list[dict[str, Any]]:
    """What the browser sees on each page."""
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    Handler.script = (
        SCRIPT.replace("PAGES", json.dumps(pages)).replace('"REPORT"', json.dumps(REPORT)).encode()
    )
    Handler.report, Handler.reported = [], threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}{CHECK}",
            "--remote-debugging-port=0",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not Handler.reported.wait(SECONDS):
                sys.exit(f"{browser} did not look through {len(pages)} pages in {SECONDS} s")
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
    return Handler.report


def complaints(found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a page."""
    page = found["page"]
    yield from (f"{page}: the figure {name} does not load" for name in found["broken"])
    yield from (f"{page}: a formula is wrong: {text}" for text in found["errors"])
    yield from (f"{page}: asks another host for {name}" for name in found["elsewhere"])
    if found["drawn"] < found["formulas"]:
        yield f"{page}: {found['drawn']} of {found['formulas']} formulas are drawn"


def main(arguments: list[str] | None = None) -> int:
    """Check the site; return 1 when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python docs/check_site.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Path(__file__).parent / "_build" / "html"
    parser.add_argument("site", type=Path, nargs="?", default=default, help="the built pages")
    site = parser.parse_args(arguments).site.resolve()
    if not (site / "index.html").exists():
        sys.exit(f"there is no site in {site}; build it with make docs")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser found, of {', '.join(BROWSERS)}; on Debian: apt install chromium")
    seen = look(site, browser)
    wrong = [*broken_links(site), *(text for found in seen for text in complaints(found))]
    print("\n".join(wrong), end="\n" * bool(wrong))
    counts = {what: sum(found[what] for found in seen) for what in ("images", "drawn")}
    print(
        f"{len(seen)} pages, {counts['images']} figures, {counts['drawn']} formulas: "
        f"{f'{len(wrong)} things are wrong' if wrong else 'all in order'}"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
