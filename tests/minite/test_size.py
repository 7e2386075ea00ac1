"""minite stays short enough to read in one sitting."""

from __future__ import annotations

import ast
import io
import tokenize

from labcore.workspace import CODE

LIMIT = 600  # lines of code
FILE_LIMIT, FUNCTION_LIMIT = 300, 40
FILES = sorted((CODE / "minite").rglob("*.py"))
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Return the number of lines that are neither blank, nor comments, nor docstrings."""
    docstrings = [node.body[0] for node in ast.walk(ast.parse(text))
                  if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None]
    spans = [(token.start[0], token.end[0])
             for token in tokenize.generate_tokens(io.StringIO(text).readline)
             if token.type not in NO_CODE]
    spans = [span for span in spans
             if not any(doc.lineno <= span[0] <= doc.end_lineno for doc in docstrings)]
    return len({line for first, last in spans for line in range(first, last + 1)})


def test_lines_of_code_are_counted_without_docstrings_comments_and_blank_lines():
    assert code_lines('"""Two\nlines."""\n\n# why\nx = """a\nb"""  # and why\n\n\n'
                      'def f():\n    """Return 1."""\n    return (\n        1)\n') == 5


def test_the_package_is_short_enough_to_read():
    assert sum(code_lines(path.read_text()) for path in FILES) <= LIMIT
    for path in FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= FILE_LIMIT, path.name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < FUNCTION_LIMIT, node.name
