"""Students' HTML as it reaches a browser; tests/browser/test_formgrader_scripts.py clicks."""

from __future__ import annotations

import base64
import hashlib
import html
import re

import pytest
from nbformat import v4

from grader.nbgrader_plugin import formgrader_pages, mathjax
from grader.nbgrader_plugin.clean import student_html
from grader.nbgrader_plugin.exporter import Sanitized
from tests.grader.small_lab import marks

LINK = re.compile(r'<a (?:(?:href="([^"]*)"|target="_blank"|rel="noopener noreferrer") ?)+>')


@pytest.mark.parametrize("address", [
    "javascript:x()", " javascript:x()", "java\tscript:x()", "java\nscript:x()", "\x01javascript:x",
    "JAVASCRIPT:x()", "vbscript:x", "data:text/html,x", "data:image/svg+xml,<svg/>", "blob:x",
    "file:///etc/passwd", "//elsewhere.example", "/formgrader?path=x", "../api/contents", "?x",
    "#x", "files/javascript:x()", "view-source:https://a", "jar:https://a!/", "intent://x", ""])
def test_only_links_that_lead_away_stay_links(address):
    for text in (address, "".join(f"&#{ord(letter)};" for letter in address)):
        cleaned = student_html(f'<a href="{text if text != address else html.escape(text)}">x</a>')
        assert LINK.match(cleaned)[1] is None and "x</a>" in cleaned


@pytest.mark.parametrize("address", ["https://a.example/b?c=d#e", "HTTP://a.example", "mailto:a@b"])
def test_links_that_lead_away_open_a_tab_that_knows_nothing_of_this_one(address):
    cleaned = student_html(f'<a href="{address}" target="_top" rel="opener">x</a>')
    assert LINK.match(cleaned)[1] == address
    assert 'target="_blank"' in cleaned and 'rel="noopener noreferrer"' in cleaned


@pytest.mark.parametrize("text", [
    "<script>pwned</script>", "<style>pwned</style>", "<base href=//pwned>", "<svg onload=pwned()>",
    "<form action=pwned><input name=pwned></form>", "<meta http-equiv=refresh content=pwned>",
    "<iframe srcdoc=pwned></iframe>", "<object data=pwned></object>", "<p style='color:pwned'>",
    "<b class='full-credit pwned' id=pwned data-toggle=pwned name=pwned onclick=pwned>",
    "<td style='background:url(//pwned)'>", "<img src=https://pwned srcset=//pwned>",
    "<img src='data:image/svg+xml;base64,pwned'>", "<img src='data:image/png,pwned'>",
    "<template><img src=x onerror=pwned></template>", "<link rel=stylesheet href=//pwned>",
    "<math><mtext><style><img src=x onerror=pwned></style></mtext></math>",
    "<noscript><p title=\"</noscript><img src=x onerror=pwned>\"></noscript>", "<!-- pwned -->"])
def test_nothing_else_that_runs_loads_or_has_a_name_stays(text):
    assert "pwned" not in re.sub(r'title="[^"]*"', "", student_html(f"<table><tr>{text}</table>"))


def test_text_tables_formulas_and_pictures_stay():
    kept = ('<h2>A</h2><p><strong>b</strong> $a &lt; b$ \\(c\\)</p><table><tbody><tr>'
            '<td style="text-align:right" colspan="2">d</td></tr></tbody></table>'
            '<img src="data:image/png;base64,AA==" alt="e">'
            '<div class="highlight"><pre><span class="nf">f</span></pre></div>')
    assert student_html(kept) == kept


def rendered(source: str, **more: object) -> str:
    cell = v4.new_markdown_cell(source, metadata=marks("why", **more))
    return Sanitized().markdown2html({"cell": cell}, source)


def test_the_courses_own_text_stays_as_it_is():
    assert 'href="#why"' in rendered("[x](#why)") and 'id="Why"' in rendered("# Why")
    assert "<h1>Why</h1>" in rendered("# Why", solution=True)


def test_the_only_inline_script_is_the_one_that_the_policy_names():
    page = Sanitized(template_name="classic").from_notebook_node(v4.new_notebook())[0]
    (script,) = re.findall(r"<script>(window.MathJax.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" == mathjax.HASH and '"URLs": "none"' in script
    assert "x-mathjax-config" not in page and f'src="{mathjax.ADDRESS}"' in page


def test_nbgraders_templates_get_nonces_and_escape_what_they_are_given():
    text = ('<script src="{{ base_url }}/a.js"></script><script>\nvar a = "{{ student_id }}";\n'
            'var b = "{{ resources.base_url }}/formgrader";</script>{{ resources.student }}')
    assert formgrader_pages.with_nonce(text, "nonce") == (
        '<script nonce="{{ nonce }}" src="{{ base_url }}/a.js"></script>'
        '<script nonce="{{ nonce }}">\nvar a = {{ (student_id ~ "") | tojson }};\n'
        'var b = {{ (resources.base_url ~ "/formgrader") | tojson }};</script>'
        '{{ resources.student | e }}')
