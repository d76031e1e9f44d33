"""Take the pictures of README.md and docs/guide.md again, with the weights that are released now.

    python docs/screenshots.py

Needs Chromium (on Debian: `apt install chromium`) and the extras `demo` and `test`. It writes space.png (one text), the
other tabs as page-*.png, space-phone.png (two texts on a phone, dark) and html-output.png beside itself.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from hardkuma import load_released
from hardkuma.apps.page.app import build_app
from hardkuma.apps.page.examples import TEXTS as EXAMPLES
from hardkuma.apps.page.serve import serving
from hardkuma.common.rendering.html import render_page
from hardkuma.scoring_hardkuma import gate_records

HERE = Path(__file__).parent
TEXTS = (
    *EXAMPLES[:3],
    "NASA's Perseverance rover landed in Jezero Crater on 18 February 2021.",
    "The committee postponed the vote on the new cycling bridge because three members were ill.",
)


def save(picture: bytes, name: str) -> None:
    """128 colours are plenty for a page, and a third of the size."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(HERE / f".{name}", format="PNG", optimize=True)
    (HERE / f".{name}").replace(HERE / name)
    print(f"{name}: {image.width} x {image.height}, {(HERE / name).stat().st_size // 1024} kB")


def visit(browser: Any, url: str, width: int, height: int, scheme: str) -> Any:
    """A page at more pixels than it asks for, as on a modern screen."""
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "device_scale_factor": 1.25}
    page = browser.new_context(**options).new_page()
    page.goto(url)
    return page


def take_tab(browser: Any, url: str, tab: str, name: str, width: int = 1000, scheme: str = "light") -> None:
    """One tab with the example that it comes with."""
    page = visit(browser, f"{url}#/{tab}", width, 560, scheme)
    page.wait_for_selector(f"#{tab} .hk-text", timeout=120_000)
    if tab == "text":
        page.get_by_text("both", exact=True).click()
    page.wait_for_timeout(1000)
    save(page.screenshot(full_page=True), name)


def main() -> None:
    model = load_released()[0]
    with serving(build_app(model)) as url, sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take_tab(browser, url, "text", "space.png")
        for tab in ("pair", "search", "document", "methods"):
            take_tab(browser, url, tab, f"page-{tab}.png")
        take_tab(browser, url, "pair", "space-phone.png", 320, "dark")

        path = Path(folder) / "gates.html"
        path.write_text(render_page(gate_records(model, list(TEXTS), rate=0.2)), encoding="utf-8")
        # Records outside the window are not drawn (which keeps long pages quick): the window holds them all.
        page = visit(browser, path.as_uri(), 900, 1200, "light")
        page.wait_for_timeout(1000)
        save(page.locator("main").screenshot(), "html-output.png")
        browser.close()


if __name__ == "__main__":
    main()
