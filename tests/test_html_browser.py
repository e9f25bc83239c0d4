"""report.html in a real browser without a network: it loads, nothing of it fails, and one can look into a run."""

from pathlib import Path

import pytest
from browsers import chromium
from report_study import every_table
from test_ab import FOUR, run_of, tables_of
from test_history import changed, entry
from test_html import HOSTILE, render

from profpipe.analysis import analyze, history, pairs
from profpipe.commands import rendering
from profpipe.report import charts, html_page as report
from profpipe.report.document import Code, Document, Section, TableBlock, TableCell, count, label, words
from profpipe.report.render import build, build_pairs
from profpipe.report.sections import history as history_section
from profpipe.report.text import write_text
from profpipe.results import store

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: run `make setup`")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
#: Of each kind of page one, and the two largest.
OF_CI = ("accuracy", "attention_scaling", "context_parallel", "own_program", "profilers", "transformer_lm")
EXAMPLES = [
    pytest.param(name, marks=[] if name in OF_CI else pytest.mark.exhaustive)
    for name in sorted(path.parent.name for path in ROOT.glob("examples/*/run.json"))
]
MOST_BYTES = 3_000_000
#: A page with so many elements is shown within two seconds: benchmarks/pages.py.
MOST_ELEMENTS = 75_000
#: The least width of a column of names, about 18 letters.
LEAST_NAME_PX = 120
#: Addresses that need no network.
LOCAL = ("file:", "about:")


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here: run `.ci/chromium`, or set PROFPIPE_TEST_CHROMIUM to one")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def new_page(browser):
    """Make pages without a network. A message of the console, an error or a request fails the test."""
    contexts, problems = [], []

    def make(**options):
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: request.url.startswith(LOCAL) or problems.append(request.url))
        page.set_default_timeout(10_000)
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def documents():
    made: dict[str, Document] = {}

    def document(example):
        if example not in made:
            data, run = store.load(ROOT / "examples" / example)
            made[example] = (
                build_pairs(pairs.analyze(data, run), data, run)
                if run.ab
                else build(analyze.analyze(data, run), data, run)
            )
        return made[example]

    return document


@pytest.fixture(scope="module")
def reports(documents, made_once):
    def path(example):
        return made_once(f"report-{example}", lambda folder: write(example, folder / "report.html")) / "report.html"

    def write(example, path):
        path.write_text(report.render(documents(example), rendering.find_templates()), encoding="utf-8")

    return path


def address(path, place=""):
    return f"{path.as_uri()}{f'#{place}' if place else ''}"


def texts(page, selector):
    found: list[str] = page.locator(selector).all_inner_texts()
    return found


# --- every example ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page_of_an_example_is_small_and_loads(example, reports, new_page):
    path, page = reports(example), new_page()
    assert path.stat().st_size <= MOST_BYTES
    page.goto(address(path))
    assert page.evaluate("document.querySelectorAll('*').length") <= MOST_ELEMENTS
    assert page.locator("main svg.plot").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


AXE = """async () => {
  const result = await axe.run(document, {resultTypes: ['violations']});
  return result.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(' | ')}`);
}"""
#: What is wider than the element around it, unless that one scrolls.
WIDER = """() => [...document.querySelectorAll('body *')].filter((element) => {
  const box = element.getBoundingClientRect(), around = element.parentElement.getBoundingClientRect();
  const scrolls = element.closest('svg *, .scroll *, pre *, .skip, .unseen, .close, dialog:not([open])');
  return !scrolls && element.checkVisibility() && (box.right > around.right + 1.5 || box.left < around.left - 1.5);
}).map((element) => element.outerHTML.slice(0, 160))"""


@pytest.mark.parametrize(("example", "scheme", "width", "place"), [
    ("cogvideox", "light", 400, ""),
    ("own_program", "dark", 1400, ""),
    ("own_program", "light", 400, "case-gpt-compile=true"),
    pytest.param("accuracy", "dark", 400, "", marks=pytest.mark.exhaustive),  # the largest pages
    pytest.param("scenarios", "light", 1400, "", marks=pytest.mark.exhaustive),
    ("auto_profile", "dark", 400, ""),
])  # fmt: skip
def test_axe_finds_nothing_and_nothing_is_wider_than_its_box(example, scheme, width, place, reports, new_page):
    assert violations(new_page, address(reports(example), place), scheme, width) == []


def test_axe_finds_nothing_in_verdicts_and_courses(tmp_path, new_page):
    data, run = tables_of(FOUR), run_of(2)
    entries = [entry(number) for number in range(12, 0, -1)]
    courses = history.analyze(entries, changed(), lambda *_: {})
    documents = {
        "report.html": build_pairs(pairs.analyze(data, run), data, run),
        "profpipe.html": history_section.document(courses, "out", lambda run: f"{run}/report.html"),
    }
    for name, document in documents.items():
        (tmp_path / name).write_text(report.render(document, rendering.find_templates()), encoding="utf-8")
        assert violations(new_page, address(tmp_path / name), "light", 400) == []


def violations(new_page, url, scheme, width):
    """What axe finds in a page, and what is wider than its box."""
    axe = pytest.importorskip("axe_playwright_python", reason="no axe-core: run `make setup`")
    # The policy of the page allows no further script, so this one is not of the page.
    page = new_page(color_scheme=scheme, bypass_csp=True, viewport={"width": width, "height": 900})
    page.goto(url)
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    found: list[str] = page.evaluate(AXE) + page.evaluate(WIDER)
    return found


# --- figures ---------------------------------------------------------------------------------------------------------


def shown_table(table):
    """The cells of a table as a page shows them, without notes and flags."""
    return [
        [cell.number(column) or write_text(cell.text) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


@pytest.mark.parametrize(("example", "workload", "section"), [
    ("h200-attention", "attention", "times"),
    ("h200-attention", "attention", "limits"),
    ("own_program", "gpt", "steps"),
])  # fmt: skip
def test_the_figures_are_those_of_the_tables(example, workload, section, documents, reports, new_page):
    page = new_page()
    page.goto(address(reports(example)))
    own = documents(example).section(section, workload)
    assert own is not None
    table = next(every_table(own))
    cells = page.locator(f"#{workload}-{section} table").first.locator("tbody tr")
    rows = cells.evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()))")
    expected = shown_table(table)
    assert [[cell.startswith(text) for cell, text in zip(row, texts, strict=True)]
            for row, texts in zip(rows, expected, strict=True)] == [[True] * len(row) for row in expected]  # fmt: skip


# --- looking into a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def attention(reports, new_page):
    page = new_page()
    page.goto(address(reports("h200-attention")))
    page.evaluate("for (const fold of document.querySelectorAll('details.fold')) fold.open = true")
    return page


TIMES = "#attention-times table"


def test_a_table_is_sorted_by_its_numbers_in_both_directions_and_back(attention):
    def column():
        return [float(text) for text in texts(attention, f"{TIMES} tbody tr td:nth-child(4)")]

    head = attention.locator(f"{TIMES} thead button", has_text="time")
    before = column()
    head.click()
    assert column() == sorted(before, reverse=True)
    head.focus()
    attention.keyboard.press("Enter")
    assert column() == sorted(before) and column() != before
    assert attention.locator(f"{TIMES} th[aria-sort=ascending]").count() == 1
    head.click()
    assert column() == before


def test_a_table_shows_the_rows_that_have_all_words_of_the_filter(attention):
    field = attention.locator("#attention-cases input[data-filter]").first
    rows = f"#attention-cases table#{field.get_attribute('data-filter')} tbody tr:visible"
    before = attention.locator(rows).count()
    field.fill("fwd_bwd 8192")
    shown = texts(attention, rows)
    assert 0 < len(shown) < before and all("fwd_bwd" in row and "8192" in row for row in shown)


def test_a_case_is_opened_from_a_table_and_closed_by_the_keyboard(attention):
    attention.locator(f"{TIMES} a", has_text="xformers").first.click()
    dialog = attention.locator("dialog[open]")
    assert dialog.locator("h2").inner_text() == "mode fwd, seqlen 8192, xformers"
    assert "1119 us" in dialog.inner_text() and "How to repeat it" in dialog.inner_text()
    assert "case-attention-" in attention.evaluate("location.hash")
    attention.keyboard.press("Escape")
    attention.locator("dialog[open]").wait_for(state="detached")
    assert "case-" not in attention.evaluate("location.hash")


def test_a_case_is_opened_from_its_point_and_the_way_back_closes_it(attention):
    mark = attention.locator("#attention-explorer .option:visible svg .mark[data-case]").last
    mark.scroll_into_view_if_needed()
    mark.hover()
    assert "Click: the case" in attention.locator("#tip").inner_text()
    mark.click()
    assert attention.locator("dialog[open]").count() == 1
    attention.go_back()
    attention.locator("dialog[open]").wait_for(state="detached")


def test_the_chart_follows_the_quantity_the_profiler_and_the_view(attention):
    choice = attention.locator("#attention-explorer .choice").first
    assert choice.locator(".option:visible").count() == 1
    first = choice.locator("figcaption:visible").inner_text()
    choice.locator("select").nth(0).select_option("kernel time")
    assert choice.locator(".option:visible").count() == 1
    assert choice.locator("figcaption:visible").inner_text() != first
    choice.locator("select").nth(1).select_option("ncu")
    assert "ncu" in choice.locator("figcaption:visible").inner_text()


def test_a_series_is_highlighted_in_every_chart_that_has_it(attention):
    choice = attention.locator("#attention-headline figure")
    choice.locator(".legend button", has_text="fa2").click()
    series = choice.locator("svg.plot .series")
    faded = series.evaluate_all("all => all.filter(g => g.classList.contains('faded')).map(g => g.dataset.series)")
    kept = series.evaluate_all("all => all.filter(g => !g.classList.contains('faded')).map(g => g.dataset.series)")
    assert set(kept) == {"fa2"} and "xformers" in faded
    assert choice.locator(".legend button[aria-pressed=true]").inner_text() == "fa2"


def test_an_address_brings_back_the_whole_view(attention, new_page):
    attention.locator("#theme").select_option("dark")
    attention.locator(f"{TIMES} thead button", has_text="time").click()
    choice = attention.locator("#attention-explorer .choice").first
    choice.locator("select").nth(0).select_option("TFLOP/s")
    attention.locator("#attention-headline .legend button", has_text="fa2").click()
    field = attention.locator("#attention-cases input[data-filter]").first
    field.fill("fwd_bwd 8192")
    attention.locator(f"{TIMES} a", has_text="sdpa_cudnn").first.click()
    other = new_page()
    other.goto(attention.url)
    for selector in ("dialog[open] h2", f"{TIMES} tbody", "#attention-cases table tbody tr:visible",
                     "#attention-explorer figcaption:visible"):  # fmt: skip
        assert texts(other, selector) == texts(attention, selector) != []
    assert other.evaluate("document.documentElement.dataset.theme") == "dark"
    assert other.locator(".legend button[aria-pressed=true]").count() > 0


def test_a_link_opens_the_section_that_is_folded(reports, new_page):
    page = new_page()
    page.goto(address(reports("h200-attention")))
    assert page.locator("#attention-cases table:visible").count() == 0
    page.locator("nav a[href='#attention-cases']").click()
    assert page.locator("#attention-cases table:visible").count() > 0


WRONG = (
    "?sort.attention-times-table-fastest=99.descending",
    "?show.attention-explorer-choice-view=7",
    "?filter.nothing=x",
    "%E0%A4%A",
    "case-unknown?series=%22%5D",
    "?theme=pink",
)


def test_an_address_that_says_nothing_shows_the_page(reports, new_page):
    page = new_page()
    for place in WRONG:
        page.goto("about:blank")
        page.goto(address(reports("h200-attention"), place))
        assert page.locator("main h2:visible").count() > 5


def test_one_workload_can_be_chosen(reports, new_page):
    page = new_page()
    page.goto(address(reports("own_program")))
    page.locator("#workload").select_option("trainer")
    shown = page.locator("main > section:visible").evaluate_all("all => all.map(s => s.dataset.workload ?? '')")
    assert set(shown) == {"", "trainer"}


# --- colours, sizes, without a script --------------------------------------------------------------------------------


def test_the_colours_are_those_of_the_system_until_one_is_chosen(reports, new_page):
    def background(page):
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = new_page(color_scheme="light"), new_page(color_scheme="dark")
    for page in (light, dark):
        page.goto(address(reports("own_program")))
    assert background(light) != background(dark)
    dark.locator("#theme").select_option("light")
    assert background(light) == background(dark)


@pytest.mark.parametrize(("scheme", "colours"), [
    ("light", ["rgb(255, 255, 255)", "rgb(22, 25, 31)"]), ("dark", ["rgb(23, 27, 33)", "rgb(232, 235, 239)"]),
])  # fmt: skip
def test_a_picture_of_the_summary_follows_the_scheme_of_colours(tmp_path, new_page, documents, scheme, colours):
    charts.write_files(documents("own_program"), tmp_path)
    files = sorted(tmp_path.glob("plots/*-step.svg"))
    page = new_page(color_scheme=scheme)
    for file in files:
        page.goto(address(file))
        fill = "name => getComputedStyle(document.querySelector(name)).fill"
        assert [page.evaluate(fill, name) for name in (".ground", ".title")] == colours
        piece, text = (page.locator(name).first.bounding_box() for name in (".piece", ".title"))
        assert piece["width"] > 5 and text["width"] > 100
    assert len(files) == 5


def test_a_phone_shows_the_page_without_scrolling_to_the_side(reports, new_page):
    page = new_page(viewport={"width": 375, "height": 700})
    page.goto(address(reports("h200-attention")))
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.locator(f"{TIMES} a").first.click()
    assert page.locator("dialog[open]").evaluate("d => d.scrollWidth <= d.clientWidth")


def test_long_names_break_before_a_table_is_wider_than_the_page(tmp_path, new_page):
    names = (label("kernel"), *(count(f"figure {i}") for i in range(7)), words("exchanged for"))
    name = TableCell(text=Code("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize256x128x8_cublas"))
    table = TableBlock("kernels", names, ((name, *(TableCell(123456.0) for _ in range(7)), name),))
    path = tmp_path / "page.html"
    made = Document("names", (Section("kernels", "Kernels", (table,)),))
    path.write_text(report.render(made, rendering.find_templates()), encoding="utf-8")
    page = new_page(viewport={"width": 1200, "height": 900})
    page.goto(address(path))
    assert page.locator(".scroll").evaluate("each => each.scrollWidth <= each.clientWidth")
    assert page.locator("tbody th").evaluate("cell => cell.clientWidth") > LEAST_NAME_PX


def test_the_printed_page_has_all_charts_and_no_controls(attention):
    attention.emulate_media(media="print")
    assert attention.locator("nav:visible, select:visible, input:visible").count() == 0
    assert attention.locator("main svg.plot:visible").count() > 0


def test_without_a_script_every_chart_and_every_case_can_be_read(reports, new_page):
    page = new_page(java_script_enabled=False)
    page.goto(address(reports("h200-attention")))
    page.locator("#attention-explorer > .fold > summary").click()
    options = page.locator("#attention-explorer .option")
    assert options.count() > 5 and page.locator("#attention-explorer .option:visible").count() == options.count()
    page.locator(f"{TIMES} a", has_text="xformers").first.click()
    assert page.locator("dialog:visible h2").inner_text() == "mode fwd, seqlen 8192, xformers"


# --- texts from outside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [HOSTILE[::4], pytest.param(HOSTILE, marks=pytest.mark.exhaustive)], ids=len)
def test_a_hostile_text_runs_nothing(tmp_path, new_page, names):
    page = new_page()
    for number, name in enumerate(names):
        path = tmp_path / f"{number}.html"
        path.write_text(render(name), encoding="utf-8")
        page.goto(address(path))
        for button in page.locator("button:visible").all()[:3]:
            button.click()
        page.locator("main a[href^='#case']").first.click()
        assert page.locator("dialog[open]").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
