"""The scripts of the pages, which are bundled from their modules and kept with the sources."""

import hashlib
import re

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "src" / "attnflow"
BUNDLES = sorted(PACKAGE.glob("**/bundles/*.js"))


def test_every_bundle_is_made_of_the_present_sources():
    digest = hashlib.sha256()
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.glob("**/*.js")]
    for path in sorted(str(path) for path in paths if "bundles" not in path.parts):
        digest.update(f"{path}\n".encode() + (PACKAGE / path).read_bytes())
    assert {path.name for path in BUNDLES} == {
        "browse.js", "generation.js", "page.js", "serve.js", "widget.js"
    }  # fmt: skip
    for path in BUNDLES:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert digest.hexdigest() in first, f"{path.name} is stale: run make bundles"


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.name)
def test_a_bundle_imports_nothing_and_cannot_end_its_element(path):
    script = path.read_text(encoding="utf-8")
    assert not re.search(r"\bimport\s*[\w{*(\"']", script)
    assert "</script" not in script
    assert "innerHTML" not in script
    assert "http://" not in script
    assert "https://" not in script
