"""Take the pictures of the README again, with the weights that are released now.

    python docs/screenshots.py

Needs Chromium (on Debian: `apt install chromium`) and the extras `demo` and `test`. It writes space.png, space-phone.png
and html-output.png beside itself.
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
from hardkuma.demo.page import EXAMPLES, build_app, launch_options
from hardkuma.rendering import render_page
from hardkuma.words_hardkuma import gate_records

HERE = Path(__file__).parent
TEXTS = (
    *EXAMPLES[:3],
    "NASA's Perseverance rover landed in Jezero Crater on 18 February 2021.",
    "The committee postponed the vote on the new cycling bridge because three members were ill.",
)


def save(picture: bytes, name: str) -> None:
    """256 colours are plenty for a page, and a third of the size."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(HERE / f".{name}", format="PNG", optimize=True)
    (HERE / f".{name}").replace(HERE / name)
    print(f"{name}: {image.width} x {image.height}, {(HERE / name).stat().st_size // 1024} kB")


def visit(browser: Any, url: str, width: int, height: int, scheme: str) -> Any:
    """A page at twice the pixels, as sharp as on a modern screen."""
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "device_scale_factor": 2}
    page = browser.new_context(**options).new_page()
    page.goto(url)
    return page


def main() -> None:
    model = load_released()[0]
    app = build_app(model)
    _, url, _ = app.launch(**launch_options(prevent_thread_lock=True, quiet=True))
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        page = visit(browser, url, 1000, 640, "light")
        page.wait_for_selector("#gates .hk-text")
        page.wait_for_timeout(1000)
        save(page.screenshot(full_page=True), "space.png")

        page = visit(browser, url, 390, 844, "dark")
        page.get_by_role("tab", name="Two texts").click()
        page.get_by_role("button", name="Explain the similarity").click()
        page.locator("#pair .hk-record").nth(1).wait_for()
        page.wait_for_timeout(1000)
        save(page.screenshot(full_page=True), "space-phone.png")

        path = Path(folder) / "gates.html"
        path.write_text(render_page(gate_records(model, list(TEXTS), rate=0.2)), encoding="utf-8")
        # Records outside the window are not drawn (which keeps long pages quick): the window holds them all.
        page = visit(browser, path.as_uri(), 900, 1200, "light")
        page.wait_for_timeout(1000)
        save(page.locator("main").screenshot(), "html-output.png")
        browser.close()
    app.close()


if __name__ == "__main__":
    main()
