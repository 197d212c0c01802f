"""The report page in a browser: what it shows, how it is used by mouse and keyboard, and that it loads nothing."""

from __future__ import annotations

import math
import shutil

import pytest

from smoothcert import data, load_run
from smoothcert.report.intervals import wilson_interval
from smoothcert.report.page.html import report_html, write_report
from smoothcert.report.page.leaderboard import leaderboard_html

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "<img src=x onerror=alert(1)>"
OWNED = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">`${1}`\u2028{{data}}"
)
OWNED_NAME = OWNED.replace("/", "")
TITLE = "</script><script>alert(1)</script>"


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
def address(digits_runs, tmp_path_factory):
    """A report on real runs, in a file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    digits = data.load("digits", split="test")
    write_report(file, report_html([digits_runs], radii=[0, 0.05, 0.1, 0.2], title=TITLE, dataset=digits))
    return file.as_uri()


@pytest.fixture
def visit(browser):
    """Open a page; afterwards nothing may have been complained about, and nothing loaded but the file."""
    trouble, contexts = [], []

    def go(address, **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.split("#")[0] == address or request.url.startswith("data:")
                else trouble.append(request.url)
            ),
        )
        page.goto(address)
        page.wait_for_selector("#grid .tile, #nothing:not([hidden]), #groups tbody")
        return page

    yield go
    for context in contexts:
        context.close()
    assert trouble == []


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def scrolls_sideways(page):
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def test_hostile_names_show_as_text(visit, address):
    page = visit(address)
    assert page.inner_text("h1") == TITLE
    assert page.title() == TITLE
    assert page.locator("main img").count() == 0
    names = sorted(texts(page, "#overview-table tbody th"))
    assert names == sorted(["aces", HOSTILE, "small"])
    for selector in ("#legend button", "#configurations summary"):
        assert any(text.strip().removesuffix(" [global]") == HOSTILE for text in texts(page, selector))
    assert HOSTILE in texts(page, "#by-a option")
    assert HOSTILE in page.inner_text("#detail")
    chart_names = page.evaluate("document.getElementById('curve-chart').data.map((trace) => trace.name)")
    assert "&lt;img src=x onerror=alert(1)&gt; [global]" in chart_names


def test_nothing_that_comes_from_files_is_run(visit, hostile_run, tmp_path):
    folder, dataset = hostile_run
    page_text = report_html([folder], title=OWNED, dataset=dataset)
    write_report(tmp_path / "report.html", page_text)
    page = visit((tmp_path / "report.html").as_uri())
    for heading in page.locator("#configurations summary").all():
        heading.click()
    page.locator("#grid .tile").first.click()
    page.hover("#curve-chart")
    page.wait_for_timeout(200)
    assert page.title() == OWNED
    assert page.locator("main img[onerror]").count() == 0
    assert page.locator("script:not([type])").count() == report_html([folder], title="t").count("<script>")
    shown = page.text_content("#configurations")
    for text in (
        "procedure.name",
        f"noise.{OWNED}",
        f"last session.{OWNED}",
        "last session.source.path",
        "model.class",
    ):
        assert text in shown
    assert shown.count(OWNED) > 10
    assert OWNED_NAME in page.text_content("#overview-table")
    assert OWNED in page.text_content("#detail")  # the name of a class


def test_table_is_sorted_by_mouse_and_keyboard(visit, address):
    page = visit(address)
    acr = "#overview-table tbody td:nth-child(2)"
    page.click("#overview-table .sort:text-is('ACR')")
    values = [float(text) for text in texts(page, acr)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1
    page.keyboard.press("Enter")  # the heading kept the focus
    assert [float(text) for text in texts(page, acr)] == sorted(values)
    assert page.locator("[aria-sort='ascending']").inner_text().startswith("ACR")
    page.click("#overview-table .sort:text-is('Run')")
    names = texts(page, "#overview-table tbody th")
    assert names == sorted(names, key=str.casefold)


def test_a_run_can_be_hidden(visit, address):
    page = visit(address)
    lines = "#curve-chart .scatterlayer .trace"
    assert page.locator(lines).count() == 3
    chip = page.locator("#legend button", has_text="small")
    chip.focus()
    page.keyboard.press("Space")
    assert chip.get_attribute("aria-pressed") == "false"
    assert page.locator(lines).count() == 2
    assert page.text_content("#limits").startswith(f"Sampling limits: {HOSTILE}: 0.")
    assert "small" not in page.text_content("#limits")
    assert page.evaluate("document.getElementById('curve-chart').layout.shapes.length") == 1
    chip.click()
    assert page.locator(lines).count() == 3


def test_accuracy_on_a_logarithmic_axis_and_on_hover(visit, address):
    page = visit(address)
    page.check("#log-scale")
    assert page.evaluate("document.getElementById('curve-chart').layout.yaxis.type") == "log"
    page.uncheck("#log-scale")
    page.locator("#curve-chart").scroll_into_view_if_needed()
    box = page.locator("#curve-chart .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    page.wait_for_selector("#curve-chart .hoverlayer .legend", state="attached")
    shown = page.text_content("#curve-chart .hoverlayer")
    assert "small" in shown
    assert HOSTILE in shown
    assert "%" in shown


def test_every_mark_of_the_threshold_chart_is_in_its_key(visit, address):
    page = visit(address)
    symbols = page.evaluate("document.getElementById('aces-chart').data.map((each) => each.marker.symbol)")
    curve, *points = texts(page, "#aces-key li")
    assert curve.endswith("aces, every θ; the ring is the chosen one")
    assert sorted(text[1:].strip() for text in points) == sorted(["aces, certifier alone", "small", HOSTILE])
    assert len({text[0] for text in points}) == len(set(symbols[1:-1])) == 3  # without the curve and the ring


def test_natural_accuracy_is_not_under_the_heading_certified(visit, address):
    page = visit(address)
    over = page.locator("#theta-table tr.over th")
    assert over.inner_text() == "Certified (%) at ℓ2 radius"
    natural = page.locator("#theta-table thead th", has_text="NAC").bounding_box()
    assert natural["x"] + natural["width"] <= over.bounding_box()["x"] + 1


@pytest.mark.parametrize("width", [400, 1280])
def test_what_is_cut_on_a_narrow_screen_is_marked(visit, address, width):
    page = visit(address, viewport={"width": width, "height": 800})
    for selector in ("nav", "#overview .scroll", "#aces .scroll"):
        cut = page.eval_on_selector(selector, "(element) => element.scrollWidth > element.clientWidth + 1")
        assert cut == (page.get_attribute(selector, "data-more") == "right")
        assert cut or width == 1280
        page.eval_on_selector(selector, "(element) => element.scrollTo({ left: 10000, behavior: 'instant' })")
        page.wait_for_function("(each) => !document.querySelector(each).dataset.more.includes('right')", arg=selector)


def test_threshold_moves_row_and_point(visit, address):
    page = visit(address)
    place = "(() => { const all = document.getElementById('aces-chart').data; const last = all[all.length - 1]; "
    place += "return [last.x[0], last.y[0]]; })()"
    assert page.inner_text("#theta-value") == "0.50"
    row, point = texts(page, "#theta-table td"), page.evaluate(place)
    page.focus("#theta")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#theta-value") == "0.70"
    assert texts(page, "#theta-table td") != row
    moved = page.evaluate(place)
    assert moved != point
    curve = page.evaluate("page.group.aces.curves[0]")
    at = curve["theta"].index("0.70")
    assert moved == [curve["natural"][at], curve["acr"][at]]
    assert texts(page, "#theta-table tbody tr:first-child td") == [
        curve["naturalText"][at],
        curve["acrText"][at],
        *curve["certified"][at],
    ]
    page.keyboard.press("Home")
    assert page.inner_text("#theta-value") == "0.00"
    assert texts(page, "#theta-table tbody tr:first-child td")[1] == "0.000"


def certified(page, name, radius):
    """The inputs that a run certifies as right, straight from the data of the page."""
    return set(
        page.evaluate(
            """([name, least]) => {
                const run = page.group.runs.find((each) => each.name === name);
                const right = (i) => run.predict[i] === page.group.label[i];
                return page.group.index.filter((_, i) => right(i) && run.radius[i] >= least);
            }""",
            [name, round(radius * 1e4)],
        )
    )


def shown_inputs(page):
    found = []
    while True:
        found += [int(text.split("\n")[0].removeprefix("#")) for text in texts(page, "#grid .tile")]
        if page.is_disabled("#page-on"):
            return found
        page.click("#page-on")


def test_inputs_are_filtered_and_sorted(visit, address):
    page = visit(address)
    assert len(shown_inputs(page)) == 125
    page.select_option("#by-a", label="small")
    page.select_option("#by-b", label=HOSTILE)
    page.fill("#by-radius", "0.1")
    wanted = certified(page, "small", 0.1) - certified(page, HOSTILE, 0.1)
    assert 0 < len(wanted) < 125
    assert set(shown_inputs(page)) == wanted
    assert page.inner_text("#found").startswith(f"{len(wanted)} of 125 inputs")
    page.select_option("#sort-by", "difference")
    difference = page.evaluate(
        """([inputs, names]) => {
            const [a, b] = names.map((name) => page.group.runs.find((run) => run.name === name));
            const proved = (run, i) => (run.predict[i] === page.group.label[i] ? run.radius[i] : -1);
            return inputs.map((index) => page.group.index.indexOf(index)).map((i) => proved(a, i) - proved(b, i));
        }""",
        [shown_inputs(page), ["small", HOSTILE]],
    )
    assert difference == sorted(difference, reverse=True)
    page.click("#reset-filters")
    assert page.inner_text("#found").startswith("125 inputs")
    page.select_option("#by-class", label="3")
    labels = dict(page.evaluate("page.group.index.map((index, i) => [index, page.group.label[i]])"))
    assert {labels[index] for index in shown_inputs(page)} == {3}
    page.fill("#by-radius", "50")
    page.select_option("#by-a", label="small")
    assert page.is_visible("#nothing")
    assert "No input" in page.inner_text("#detail")


def test_an_input_is_opened_and_arrow_keys_go_on(visit, address):
    page = visit(address)
    page.click("#grid .tile >> nth=2")
    assert page.inner_text("#detail h3") == f"Input 8: {data.load('digits', split='test')[8][1]}"
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#detail h3").startswith("Input 12:")
    assert page.evaluate("document.activeElement.dataset.input") == "3"
    page.keyboard.press("ArrowDown")
    columns = page.evaluate("getComputedStyle(document.getElementById('grid')).gridTemplateColumns.split(' ').length")
    assert page.inner_text("#detail h3").startswith(f"Input {4 * (3 + columns)}:")
    page.focus("#detail [aria-label='Next input']")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#detail h3").startswith(f"Input {4 * (2 + columns)}:")
    for _ in range(70):  # over the end of the page
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#page-number") == "page 2 of 3"
    assert sum(map(int, texts(page, "#detail .answer:first-child .number"))) == 200


def test_images_and_noise_are_drawn(visit, address):
    page = visit(address)
    page.locator("#detail .copies canvas[width='8']").first.wait_for()
    drawn = page.evaluate(
        """() => { const canvas = document.querySelector("#detail .pictures > canvas");
            const pixels = canvas.getContext("2d").getImageData(0, 0, 8, 8).data;
            return Array.from({ length: 64 }, (_, at) => pixels[4 * at]); }"""
    )
    image = data.load("digits", split="test")[0][0]
    assert drawn == (255 * image).round().flatten().int().tolist()
    assert "illustration" in page.inner_text("#detail")
    spread = page.evaluate(
        """() => { const noise = { name: "gaussian", sigma: 0.3 };
            const values = Array.from({ length: 20000 }, () => noisyValue(noise, 0.5) - 0.5);
            return Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length); }"""
    )
    assert spread == pytest.approx(0.3, rel=0.05)
    kept = page.evaluate(
        """() => { const noise = { name: "discrete", keep: 0.8, levels: 4 };
            const values = Array.from({ length: 20000 }, () => noisyValue(noise, 0.25));
            const share = (level) => values.filter((value) => value === level).length / 20000;
            return [0, 0.25, 0.5, 0.75, 1].map(share); }"""
    )
    assert kept == pytest.approx([0.05, 0.8, 0.05, 0.05, 0.05], abs=0.02)


def test_dark_and_light(visit, address):
    page = visit(address, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    light = page.evaluate(background)
    assert dark != light
    other = visit(address, color_scheme="light")
    assert other.evaluate(background) == light
    other.click("#theme")
    assert other.evaluate(background) == dark


def test_a_phone_has_no_sideways_scrolling(visit, address):
    page = visit(address, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert not scrolls_sideways(page)
    page.tap("#grid .tile >> nth=1")
    page.locator("#configurations summary").first.tap()
    assert page.locator("#configurations details[open] dd").count() > 5
    assert not scrolls_sideways(page)


def test_groups_that_cannot_be_compared(visit, digits_runs, tmp_path):
    log = tmp_path / "published"
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.5\t1\t1.5\n1\t2\t-1\t0.0\t0\t1.5\n")
    file = tmp_path / "report.html"
    write_report(file, report_html([digits_runs / "small", log]))
    page = visit(file.as_uri())
    assert page.is_visible("#group-choice")
    assert page.is_hidden("#aces")
    page.select_option("#group", index=1)
    assert texts(page, "#overview-table tbody th") == ["published"]
    assert "kept no votes" in page.inner_text("#detail")
    assert "Guarantee: unknown" in page.inner_text("#meaning")
    assert "without images" in page.inner_text("#inputs")


def test_the_leaderboard_ranks_at_the_chosen_radius(digits_runs, tmp_path, visit):
    file = tmp_path / "leaderboard.html"
    small, large = (load_run(digits_runs / name) for name in ("small", HOSTILE))
    write_report(file, leaderboard_html([digits_runs / "small", digits_runs / HOSTILE], radius=0.0, title=TITLE))
    page = visit(file.as_uri())
    assert page.locator("h1").text_content() == TITLE
    for radius in (0.0, 0.05, 0.3):
        page.get_by_label("Rank at radius").fill(str(radius))
        counts = {each.name: round(125 * each.certified_accuracy(radius)) for each in (small, large)}
        rows = page.locator("tbody tr").all()
        shown = {row.locator("th").text_content(): row.locator("td").all_text_contents() for row in rows}
        assert list(shown) == sorted(shown, key=lambda name: -counts[name])
        assert {name: cells[1] for name, cells in shown.items()} == {
            name: f"{100 * count / 125:.1f}" for name, count in counts.items()
        }
        low, high = wilson_interval(counts["small"], 125)
        assert shown["small"][2] == f"{math.floor(1000 * low) / 10:.1f}–{math.ceil(1000 * high) / 10:.1f}"
