import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs/python.md", ROOT / "hosted/python/README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_do_what_they_say(page, tale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").symlink_to(tale)
    # Fences of Markdown are no part of what an example prints.
    text = page.read_text().replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, clear_globs=True)
    assert runner.failures == 0
