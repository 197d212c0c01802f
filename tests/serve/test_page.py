"""The page of the server in a browser: upload, drawing, votes, changes, keys, errors; and it loads nothing else."""

from __future__ import annotations

import io
import json
import re
import shutil
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import Anytime, Gaussian, Smoothed

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
import uvicorn
from playwright.sync_api import expect, sync_playwright

from smoothcert.serve.app import create_app
from smoothcert.serve.keys import Keys
from smoothcert.serve.service import Served, Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "wide <img src=x onerror=\"document.title='owned'\"><b>bold</b>"
SIDE, KEY = 28, "a key for the tests, long enough"
VERTICAL, HORIZONTAL = [(0.5, 0.15), (0.5, 0.85)], [(0.15, 0.5), (0.85, 0.5)]


def shapes() -> Served:
    """A linear model of tall and wide drawings, whose true radius is known."""
    weights = torch.zeros(SIDE, SIDE)
    weights[:, 10:18], weights[10:18, :] = 1.0, -1.0
    weights[10:18, 10:18] = 0.0
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE**2, 2, bias=False))
    model[1].weight.data = torch.stack([weights.flatten(), -weights.flatten()])
    smoothed = Smoothed(model, Gaussian(0.5, grid=255), runtime="eager")
    return Served("shapes", smoothed, Anytime(0.25), (1, SIDE, SIDE), ("tall", HOSTILE))


def unhurried() -> Served:
    """The same model without a target: it uses all votes until the deadline."""
    served = shapes()
    return Served("unhurried", served.smoothed, Anytime(n_max=10_000_000), served.shape, ("tall", "wide"))


def colours() -> Served:
    """A linear model with three channels and eight classes, without targets."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 8))
    smoothed = Smoothed(model, Gaussian(0.25), runtime="eager")
    return Served("colours", smoothed, Anytime(n_max=1_000), (3, 16, 16))


@contextmanager
def serving(*served, keys=(), ready=True):
    """Serve models on a free port of this machine."""
    service = Service(served)
    server = uvicorn.Server(uvicorn.Config(create_app(service, Keys(keys)), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not (server.started and (service.ready or not ready)):
            assert thread.is_alive()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/", service
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser():
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on the PATH: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address():
    with serving(shapes(), colours(), unhurried()) as (address, _):
        yield address


@pytest.fixture
def visit(browser):
    """Open a page; afterwards the console must be empty, and no request may have left the server."""
    trouble, contexts = [], []

    def go(address, expected=(), wait="#certify", **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)

        def complain(text):
            if not any(each in text for each in expected):
                trouble.append(text)

        page.on("console", lambda message: complain(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((address, "data:", f"blob:{address}")) else trouble.append(request.url)
            ),
        )
        page.goto(address)
        until(page, "() => document.getElementById('served').textContent !== ''") if wait else None
        return page

    yield go
    for context in contexts:
        context.close()
    assert trouble == []


def until(page, condition, argument=None):
    """Wait until a JavaScript function returns true; ``wait_for_function`` needs eval, which the page forbids."""
    for _ in range(600):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def png(rows, mode="L"):
    file = io.BytesIO()
    Image.fromarray(np.asarray(rows, dtype=np.uint8), mode).save(file, "PNG")
    return {"name": "image.png", "mimeType": "image/png", "buffer": file.getvalue()}


def tall():
    rows = np.zeros((SIDE, SIDE))
    rows[2:26, 12:16] = 255
    return png(rows)


def draw(page, *strokes):
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    for (x, y), *more in strokes:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.down()
        for x, y in more:
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=5)
        page.mouse.up()


def saved(page):
    page.wait_for_selector("#facts-box:visible")
    page.click("#facts-box summary")
    with page.expect_download() as download:
        page.click("#save")
    page.click("#facts-box summary")
    return json.loads(download.value.path().read_text(encoding="utf-8"))


def number(page, selector):
    return float(page.inner_text(selector).replace("\u202f", ""))


def shown_votes(page):
    return [int(text.replace("\u202f", "")) for text in page.locator("#votes .number").all_inner_texts()]


def bars(votes):
    """The five classes with the most votes, if they have any, and all others."""
    most = [count for count in sorted(votes, reverse=True)[:5] if count] or [0]
    return most if len(most) == len(votes) else [*most, sum(votes) - sum(most)]


def slide(page, share):
    page.evaluate(
        """(share) => { const slider = document.getElementById("size");
            slider.value = share * slider.max; slider.dispatchEvent(new Event("input")); }""",
        share,
    )


def scrolls_sideways(page):
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_an_uploaded_image_is_certified(visit, address):
    page = visit(address)
    expect(page.locator("#certify")).to_be_disabled()
    page.set_input_files("#file", tall())
    answer = saved(page)
    assert answer["label"] == 0
    assert answer["model"]["name"] == "shapes"
    assert page.inner_text("#class-name") == "tall"
    assert page.inner_text("#sentence") == answer["sentence"]
    assert number(page, "#proved") <= answer["radius"] < number(page, "#proved") + 0.001
    assert number(page, "#samples") == answer["samples"]
    assert page.locator("#decisions li").all_inner_texts() == ["ℓ2 0.25: proved"]
    assert page.locator("#radius-chart .target").count() == 1
    assert shown_votes(page) == bars(answer["votes"])
    page.click("#facts-box summary")
    facts = page.inner_text("#facts")
    for text in (answer["seed"], answer["model"]["identity"], "gaussian (sigma 0.5, grid 255)", "exact", "global"):
        assert text in facts
    page.wait_for_selector("#copies:visible")
    assert page.locator("#copy-grid img").count() == 12
    loaded = "() => [...document.querySelectorAll('#copy-grid img')].every((each) => each.naturalWidth === 28)"
    until(page, loaded)
    before = page.locator("#copy-grid img").nth(3).get_attribute("src")
    page.click("#more-copies")
    until(page, "(old) => document.querySelectorAll('#copy-grid img')[3].src !== old", before)


def test_a_drawing_is_certified_and_another_class_is_shown_as_text(visit, address):
    page = visit(address)
    draw(page, VERTICAL)
    assert saved(page)["label"] == 0
    page.click("#clear")
    assert page.is_visible("#waiting")
    draw(page, HORIZONTAL)
    answer = saved(page)
    assert answer["label"] == 1
    assert page.inner_text("#class-name") == HOSTILE
    assert HOSTILE in page.inner_text("#sentence")
    assert HOSTILE in page.inner_text("#votes")
    slide(page, 0.3)
    page.wait_for_selector("#pictures:visible")
    assert HOSTILE in page.inner_text("#verdict")
    assert page.locator("img[onerror], main b").count() == 0
    assert page.title() == "smoothcert: certified predictions"


def test_a_drawing_is_centred_and_scaled_in_steps_of_the_grid(visit, address):
    page = visit(address)
    bodies = []
    page.on("request", lambda request: bodies.append(request.post_data) if "certify" in request.url else None)
    draw(page, [(0.2, 0.1), (0.2, 0.3)])  # small, and far from the middle
    page.wait_for_selector("#facts-box:visible")
    rows = np.array(json.loads(bodies[-1])["input"])
    assert rows.shape == (1, SIDE, SIDE)
    assert np.allclose(rows * 255, np.round(rows * 255), atol=1e-9)
    assert rows.max() == 1
    high, wide = np.nonzero(rows[0])
    assert (high.min(), high.max()) == (4, 23)  # 20 of 28 pixels
    assert (wide.min() + wide.max()) / 2 == pytest.approx(13.5, abs=0.5)


def test_votes_and_radius_grow_until_the_deadline(visit, address):
    page = visit(address)
    page.click("#options summary")
    page.select_option("#model", "unhurried")
    page.fill("#deadline", "1.2")
    page.evaluate(
        """() => { window.seen = [];
            new MutationObserver(() => {
                const text = (id) => document.getElementById(id).textContent.replace("\\u202f", "");
                window.seen.push([Number(text("samples")), Number(text("proved")), text("state")]);
            }).observe(document.getElementById("samples"), { childList: true }); }"""
    )
    draw(page, VERTICAL)
    answer = saved(page)
    assert answer["seconds"]["total"] > 1.0
    seen = page.evaluate("window.seen")
    samples = [each[0] for each in seen]
    assert len(samples) > 3
    assert samples == sorted(samples)
    assert samples[0] < samples[-1] == answer["samples"]
    assert seen[0][1] < seen[-1][1]
    assert page.locator("#radius-chart .curve").get_attribute("d").count("V") >= len(samples)
    label = page.get_attribute("#radius-chart", "aria-label")
    assert f"{page.inner_text('#proved')} after {answer['samples']} samples" in label


def test_changes_inside_and_outside_of_the_radius(visit, address):
    page = visit(address)
    page.set_input_files("#file", tall())
    answer = saved(page)
    slide(page, 0.3)
    expect(page.locator("#place")).to_have_text("Inside the proved radius: the answer stays.")
    page.wait_for_selector("#pictures:visible")
    assert "proves that the answer is tall" in page.inner_text("#verdict")
    assert "agree" in page.inner_text("#verdict")
    assert "inside" in page.get_attribute("#size", "aria-valuetext")
    first = page.get_attribute("#changed-picture", "src")
    page.click("#other-direction")
    until(page, "(old) => document.getElementById('changed-picture').src !== old", first)
    slide(page, 1)
    expect(page.locator("#place")).to_have_text("Outside the proved radius: not proved.")
    expect(page.locator("#verdict")).to_contain_text("says nothing about changes of this size")
    assert "outside" in page.get_attribute("#size", "aria-valuetext")
    assert "wrong" not in page.inner_text("#perturbation")
    assert float(page.get_attribute("#size", "max")) == pytest.approx(2 * answer["radius"])
    page.focus("#size")
    page.keyboard.press("Home")
    expect(page.locator("#place")).to_contain_text("Inside")


def test_an_attack_outside_of_the_radius_changes_the_answer_and_inside_it_does_not(visit, address):
    page = visit(address)
    rows = np.full((SIDE, SIDE), 100)
    rows[2:26, 12:16] += 6  # the true radius is a little above the target
    page.click("#options summary")
    page.fill("#radius", "0.05")
    page.set_input_files("#file", png(rows))
    answer = saved(page)
    assert answer["label"] == 0
    page.select_option("#direction", "attack")
    expect(page.locator("#other-direction")).to_be_disabled()
    slide(page, 0.45)
    expect(page.locator("#verdict")).to_contain_text("agree")
    page.evaluate("document.getElementById('size').max = 4")
    slide(page, 1)
    expect(page.locator("#verdict")).to_contain_text(f"At this input the answer is {HOSTILE}.")


def test_another_model_is_chosen(visit, address):
    page = visit(address)
    assert page.is_visible("#pad")
    page.select_option("#model", "colours")
    assert page.is_hidden("#pad")
    assert "colours: inputs of 3 × 16 × 16 values" in page.inner_text("#served")
    rows = np.random.default_rng(0).integers(0, 255, (40, 20, 3))
    page.set_input_files("#file", png(rows, "RGB"))
    answer = saved(page)
    assert answer["model"]["name"] == "colours"
    assert answer["input"]["changes"] == ["resized from 20×40 to 16×16 pixels"]
    assert shown_votes(page) == bars(answer["votes"])
    assert "other classes" in page.inner_text("#votes")
    page.click("#facts-box summary")
    assert "rounding of sums is not covered" in page.inner_text("#facts")


def test_images_are_dropped_and_pasted(visit, address):
    page = visit(address)
    given = """([bytes, name, event]) => {
        const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
        document.dispatchEvent(event === "drop" ? new DragEvent("drop", { dataTransfer: files, cancelable: true })
            : new ClipboardEvent("paste", { clipboardData: files })); }"""
    for event in ("drop", "paste"):
        page.evaluate(given, [list(tall()["buffer"]), "image.png", event])
        assert saved(page)["label"] == 0
        assert page.is_visible("#picture")
        page.click("#clear")
        assert page.is_hidden("#result")
        assert page.is_hidden("#perturbation")


def test_an_array_file_is_certified(visit, address):
    page = visit(address)
    file = io.BytesIO()
    np.save(file, np.eye(SIDE, dtype=np.float32)[None])
    page.set_input_files("#file", {"name": "x.npy", "mimeType": "", "buffer": file.getvalue()})
    assert sum(saved(page)["votes"]) > 0
    assert page.inner_text("#empty") == "x.npy"


def test_a_bad_file_is_refused_in_a_sentence_and_the_next_one_is_answered(visit, address):
    page = visit(address, expected=["415 (Unsupported Media Type)", "422 (Unprocessable"])
    page.set_input_files("#file", {"name": "image.png", "mimeType": "image/png", "buffer": b"<html>no image</html>"})
    page.wait_for_selector("#failure:visible")
    assert re.fullmatch(r"the image is in none of the formats .*; convert it\.", page.inner_text("#failure"))
    assert page.get_attribute("#failure", "role") == "alert"
    assert page.is_hidden("#result")
    page.set_input_files("#file", tall())
    saved(page)
    assert page.is_hidden("#failure")
    page.click("#options summary")
    page.fill("#alpha", "0.5")
    page.click("#certify")
    page.wait_for_selector("#failure:visible")
    assert "alpha must be above 0 and at most 0.001" in page.inner_text("#failure")
    assert page.is_hidden("#perturbation")


def test_a_file_that_is_too_large_and_a_server_that_ends(visit):
    with serving(shapes(), unhurried()) as (address, service):
        page = visit(address, expected=["ERR_"])
        page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": bytes(10_000_001)})
        expect(page.locator("#failure")).to_contain_text("accepts at most 10\u202f000\u202f000.")
        page.select_option("#model", "unhurried")
        page.click("#options summary")
        page.fill("#deadline", "10")
        draw(page, VERTICAL)
        page.wait_for_selector("#result:visible")
        service.close(drain=False)
        page.wait_for_selector("#failure:visible")
        assert page.inner_text("#failure").endswith("the server is shutting down; ask another one.")
    page.click("#certify")
    expect(page.locator("#failure")).to_have_text("The server cannot be reached; see whether it still runs.")


def test_a_key_is_asked_for_and_kept_in_memory_only(visit):
    with serving(shapes(), keys=[KEY]) as (address, _):
        page = visit(address, expected=["401 (Unauthorized)"], wait=False)
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "not the key")
        page.keyboard.press("Enter")
        expect(page.locator("#key-reason")).to_contain_text("missing or unknown")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", KEY)
        page.click("#key-dialog .primary")
        page.wait_for_selector("#pad:visible")
        page.set_input_files("#file", tall())
        saved(page)
        page.wait_for_selector("#copies:visible")
        kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.search]")
        assert kept == [0, 0, "", ""]
        page.reload()
        page.wait_for_selector("#key-dialog[open]")
        page.click("#key-dialog .quiet")
        expect(page.locator("#failure")).to_have_text("The server needs an API key.")


def test_the_page_waits_for_a_server_that_starts(visit):
    with serving(shapes()) as (address, service):
        service.ready = False
        page = visit(address, expected=["503 (Service Unavailable)"], wait=False)
        expect(page.locator("#waiting")).to_have_text("The server is starting …")
        service.ready = True
        page.wait_for_selector("#pad:visible")


def test_a_new_stroke_stops_the_answer(visit, address):
    page = visit(address)
    page.click("#options summary")
    page.select_option("#model", "unhurried")
    page.fill("#deadline", "10")
    draw(page, VERTICAL)
    page.wait_for_selector("#result:visible")
    page.click("#clear")
    assert page.inner_text("#waiting") == "The answer appears here."
    page.fill("#deadline", "0.5")
    draw(page, HORIZONTAL)
    assert saved(page)["label"] == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_sideways_scrolling_and_all_text_has_contrast(visit, address, scheme):
    phone = {"viewport": {"width": 400, "height": 850}, "is_mobile": True, "has_touch": True, "color_scheme": scheme}
    page = visit(address, **phone)
    assert page.is_visible("label.camera")
    draw(page, VERTICAL)
    page.wait_for_selector("#facts-box:visible")
    assert page.inner_text("#brief") == f"tall: ℓ2 radius {page.inner_text('#proved')}"
    page.click("#facts-box summary")
    page.click("#options summary")
    slide(page, 0.3)
    page.wait_for_selector("#pictures:visible")
    assert not scrolls_sideways(page)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate(LOW_CONTRAST) == []
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != scheme
    page.wait_for_timeout(50)
    assert page.evaluate(LOW_CONTRAST) == []


LOW_CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => colour.slice(0, 3).map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] > 200) return colour;
        }
        return [255, 255, 255, 255];
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const texts = [...element.childNodes].filter((node) => node.nodeType === 3);
        const words = texts.map((node) => node.data.trim()).join("");
        if (!words || !element.checkVisibility({ opacityProperty: true })) continue;
        if (element.closest("noscript, dialog")) continue;
        const style = getComputedStyle(element);
        const colour = element.namespaceURI.includes("svg") ? style.fill : style.color;
        const [over, under] = [light(rgba(colour)), light(ground(element))];
        const contrast = (Math.max(over, under) + 0.05) / (Math.min(over, under) + 0.05);
        if (contrast < 4.5 && !element.disabled) found.push(`${words.slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return found;
}"""


def test_the_contrast_check_finds_faint_text(visit, address):
    page = visit(address)
    page.evaluate("document.getElementById('served').style.color = '#999999'")
    assert len(page.evaluate(LOW_CONTRAST)) == 1


def test_it_is_used_by_keyboard_and_without_motion(visit, address):
    page = visit(address, reduced_motion="reduce")
    page.focus("#file")
    assert page.evaluate("getComputedStyle(document.querySelector('label[for=file]')).outlineStyle") == "solid"
    page.set_input_files("#file", tall())
    page.wait_for_selector("#facts-box:visible")
    assert page.evaluate("getComputedStyle(document.querySelector('.fill')).transitionDuration") == "0s"
    page.focus("#size")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("#pictures:visible")
    assert page.get_attribute("#sentence", "role") == "status"
    unnamed = """() => {
        const named = (each) => each.labels?.length || each.textContent.trim() || each.alt
            || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby");
        const all = [...document.querySelectorAll("button, input, select, img, svg[role], [role=region]")];
        const seen = all.filter((each) => each.checkVisibility() && !each.closest("[aria-hidden]"));
        return seen.filter((each) => !named(each)).map((each) => each.id); }"""
    assert page.evaluate(unnamed) == []


def test_the_page_may_load_only_its_own_files(visit, address):
    page = visit(address, expected=["Content Security Policy"])
    response = page.request.get(address)
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    text = response.text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|https?://", text)
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), { text: 'window.ran = 1' }))")
    assert page.evaluate("window.ran") is None
