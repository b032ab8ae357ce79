"""The page at `/`, in a headless Chromium, before real servers."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import browser
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page, expect
from servers import Server, until

KEY = "a-key-for-the-page"
# From outside it would come when all is written: the model is small and quick.
PRESS_STOP_SOON = """() => {
  const text = document.querySelector(".sheet textarea");
  const looking = setInterval(() => {
    if (text.value.length < 40) return;
    clearInterval(looking);
    document.querySelector(".compose button.stop:not([hidden])").click();
  }, 5);
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page that fails its test if a script of it does."""
    opened = chromium.new_page(viewport={"width": 1280, "height": 800})
    wrong: list[str] = []
    opened.set_default_timeout(60_000)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda m: m.type == "error" and wrong.append(m.text))
    yield opened
    opened.close()
    # The browser's own word on answers that are errors.
    assert [text for text in wrong if not text.startswith("Failed to load resource")] == []


@pytest.fixture(scope="module")
def base_server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Of a model without a chat template, with a key."""
    folder = tmp_path_factory.mktemp("base") / "base"
    shutil.copytree(tiny_llama, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("chat_template", None)
    file.write_text(json.dumps(config))
    with Server(folder, "--api-key", KEY) as running:
        yield running


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def test_a_conversation_streams_and_remembers(page: Page, server: Server) -> None:
    page.goto(server.url)
    page.get_by_label("Most tokens").fill("12")
    page.get_by_label("Most tokens").blur()
    say(page, "Hello <b>there</b>")
    answers = page.get_by_label("The model")

    expect(answers.locator(".facts")).to_contain_text("prompt of")
    expect(page.get_by_label("You", exact=True)).to_have_text("Hello <b>there</b>")
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "And then?")
    body = asked.value.post_data_json
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert (body["max_tokens"], body["stream"]) == (12, True)
    assert "temperature" not in body  # what was not set is the server's to choose
    expect(answers).to_have_count(2)


def test_stop_ends_the_request_in_the_engine(page: Page, server: Server) -> None:
    page.goto(server.url)
    page.get_by_role("button", name="Continue a text").click()
    page.get_by_label("Text to continue").fill("The quick")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("4000")
    page.get_by_label("Most tokens").blur()
    before = server.metric("generation_tokens_total")
    page.evaluate(PRESS_STOP_SOON)
    page.get_by_role("button", name="Continue").click()

    expect(page.get_by_role("status").filter(has_text="stopped by you")).to_be_visible()
    expect(page.get_by_role("button", name="Undo")).to_be_enabled()
    until(lambda: server.metric("num_requests_running") == 0, 30)
    assert server.metric("generation_tokens_total") - before < 4000
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_label("Text to continue")).to_have_value("The quick")


def test_the_plots_move_while_tokens_come(page: Page, server: Server) -> None:
    page.goto(server.url)
    shown = page.locator(".plot", has_text="Generated").locator(".now")
    page.get_by_label("Most tokens").fill("600")
    page.get_by_label("Most tokens").blur()
    expect(shown).to_have_text("0")
    say(page, "Hello")

    expect(shown).not_to_have_text("0")
    line = page.locator(".plot").first.locator("path.line")
    expect(line).to_have_attribute("d", re.compile(r"^M[\d. ]+(L[\d. ]+)+h"))


def test_the_plan_and_the_matrix_are_the_servers_own(page: Page, server: Server) -> None:
    plan = server.get("/v1/platform").json()
    matrix = server.get("/v1/matrix").json()
    page.goto(f"{server.url}/#platform")
    rows = page.get_by_role("region", name="The plan").locator("tbody tr")

    expect(rows).to_have_count(len(plan["decisions"]))
    expect(rows.first).to_contain_text(plan["decisions"][0]["got"])
    table = page.get_by_role("region", name="Features of platforms")
    expect(table.locator("tbody tr")).to_have_count(len(matrix["features"]))
    why = matrix["platforms"]["cpu"]["features"]["prefix_caching"]["why"]
    table.get_by_role("button", name="prefix_caching").click()
    expect(table.locator(".reasons")).to_contain_text(why)
    page.get_by_label("Find a feature").fill("sliding")
    expect(table.locator("tbody tr[data-words]:visible")).to_have_count(1)


def test_a_base_model_continues_texts_once_the_key_is_right(
    page: Page, base_server: Server
) -> None:
    page.goto(base_server.url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server wants a key")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    expect(dialog).to_contain_text("did not accept that key")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use it").click()

    expect(page.get_by_label("Text to continue")).to_be_visible()
    expect(page.get_by_role("button", name="Chat", exact=True)).to_have_count(0)
    page.get_by_label("Text to continue").fill("Once upon")
    page.get_by_label("Most tokens").fill("8")
    page.get_by_label("Most tokens").blur()
    page.get_by_label("Text to continue").press("Control+Enter")
    expect(page.get_by_role("status").filter(has_text="prompt of")).to_be_visible()
    assert page.get_by_label("Text to continue").input_value().startswith("Once upon")


def test_a_model_that_makes_vectors_is_not_talked_to(page: Page, tiny_llama: Path) -> None:
    with Server(tiny_llama, "--task", "embed") as embedding:
        page.goto(embedding.url)

        expect(page.get_by_text("make vectors")).to_be_visible()
        expect(page.get_by_role("link", name="Chat", exact=True)).to_be_hidden()


def test_an_error_is_told_with_its_hint_and_can_be_tried_again(page: Page, server: Server) -> None:
    page.goto(server.url)
    say(page, "a" * 6000)
    wrong = page.get_by_role("alert").filter(has_text="4096")

    expect(wrong).to_be_visible()
    expect(wrong.get_by_role("button", name="Try again")).to_be_visible()
    page.get_by_label("Most tokens").fill("4")
    page.get_by_label("Most tokens").blur()
    say(page, "Shorter")
    expect(page.get_by_label("The model").last.locator(".facts")).to_contain_text("prompt of")


def test_a_server_that_is_gone_is_noticed(page: Page, tiny_llama: Path) -> None:
    with Server(tiny_llama) as dying:
        page.goto(dying.url)
        expect(page.get_by_text("ready")).to_be_visible()
    expect(page.get_by_text("not reachable")).to_be_visible()
    say(page, "Hello?")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")


@pytest.mark.parametrize("view", ["chat", "engine", "platform"])
def test_no_barrier_is_found_by_axe(page: Page, server: Server, view: str) -> None:
    page.goto(f"{server.url}/#{view}")
    page.wait_for_selector({"chat": ".hello", "engine": ".plot", "platform": ".matrix"}[view])
    if view == "platform":  # a few rows are like all
        page.get_by_label("Find a feature").fill("attention")
    light = Axe().run(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = Axe().run(page, options={"runOnly": ["color-contrast"]})

    assert light.violations_count == 0, light.generate_report()
    assert dark.violations_count == 0, dark.generate_report()


def test_a_narrow_page_is_not_wider_than_its_window(chromium: Browser, server: Server) -> None:
    page = chromium.new_page(viewport={"width": 360, "height": 640})
    for view, there in (("chat", ".hello"), ("engine", ".plot"), ("platform", ".matrix")):
        page.goto(f"{server.url}/#{view}")
        page.wait_for_selector(there)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    page.goto(f"{server.url}/#chat")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Temperature")).to_be_in_viewport()
    page.close()


def test_nothing_is_asked_of_another_host(page: Page, server: Server) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for view in ("chat", "engine", "platform"):
        page.goto(f"{server.url}/#{view}")
        page.wait_for_timeout(300)

    assert len(asked) > 10
    assert [url for url in asked if not url.startswith(server.url)] == []
    policy = server.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


# ---- Markdown ------------------------------------------------------------------------------

Rendered = Callable[[str], str]


@pytest.fixture(scope="module")
def rendered(chromium: Browser, server: Server) -> Rendered:
    """The HTML that the page makes of a text."""
    page = chromium.new_page()
    page.goto(server.url)

    def render(text: str) -> str:
        made: str = page.evaluate(
            """async text => {
              const { markdown } = await import("/ui/js/markdown.js");
              const box = document.createElement("div");
              box.append(...markdown(text));
              return box.innerHTML;
            }""",
            text,
        )
        return made

    return render


MARKDOWN = [
    "# One\n\nTwo *three* **four** `five` six",
    "- a\n- b\n  - c\n  - d\n- e",
    "1. a\n2. b\n3. `c`",
    "3. a\n4. b",
    "```python\nif a < b:\n    return *c*\n```\nafter",
    "> quoted **text**\n> and more",
    "a line\nanother\n\nnew [link](https://example.org/a?b=c&d) end",
    "snake_case_name and 2 * 3 * 4",
    "---\n\n**a *b* c**",
    "| a | b |\n|---|---|\n| 1 | **2** |",
    "~~gone~~ <b>not bold</b> & <script>alert(1)</script>",
    "#hashtag\n\n`` a ` b ``",
]


@pytest.mark.parametrize("text", MARKDOWN)
def test_markdown_is_what_another_renderer_makes_of_it(rendered: Rendered, text: str) -> None:
    other = MarkdownIt("commonmark", {"html": False, "breaks": True})
    html = other.enable(["table", "strikethrough"]).render(text)

    assert _outline(html, by_us=False) == _outline(rendered(text), by_us=True)


def test_no_text_becomes_an_element_that_can_do_anything(rendered: Rendered) -> None:
    chance = random.Random(0)
    parts = [
        *("<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "<script>", "](https://x)"),
        *("**", "*", "`", "```\n", "\n", "- ", "> ", "| a |\n|---|\n", "# ", "[", "\\", "&lt;"),
        *(
            '[x](https://a/"onclick="alert(1))',
            "[x](https://a/b?c)",
            "<a href=javascript:1>",
            "\u202e",
            "\0",
        ),
    ]
    texts = ["".join(chance.choices(parts, k=chance.randint(1, 12))) for _ in range(150)]
    html = rendered("\n\n".join(texts)) + "".join(map(rendered, texts[:50]))
    tags = set(_tags(html))

    known = {"p", "br", "em", "strong", "code", "pre", "a", "ul", "ol", "li", "blockquote", "del"}
    known |= {"h2", "h3", "h4", "h5", "h6", "hr", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for name, _ in tags} <= known
    allowed = {"href", "rel", "target", "tabindex", "data-language", "start"}
    assert {key for _, attributes in tags for key, _ in attributes} <= allowed
    links = [value for _, attributes in tags for key, value in attributes if key == "href"]
    assert links
    assert all(str(link).startswith(("https://", "http://")) for link in links)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.outline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        kept = [f"{k}={v}" for k, v in attrs if k in ("href", "start") and (k, v) != ("start", "1")]
        self.outline.append(" ".join([tag, *kept]))

    def handle_data(self, data: str) -> None:
        self.outline += data.split()


def _tags(html: str) -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    parser = _Tags()
    parser.feed(html)
    return parser.tags


def _outline(html: str, *, by_us: bool) -> list[str]:
    """Elements and words in order.  Our headings start a level lower: the page has its own."""
    parser = _Tags()
    parser.feed(html)
    names = {"s": "del"} | {f"h{i}": f"h{i + 1}" for i in range(1, 6)} if not by_us else {}
    return [names.get(item, item) for item in parser.outline]
