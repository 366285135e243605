"""What the README says is true."""

import doctest

import numpy as np

from tests.support import ROOT

README = ROOT / "README.md"


def test_the_examples_give_what_the_readme_shows():
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with np.printoptions():  # the README sets some
        result = doctest.testfile(str(README), module_relative=False, optionflags=options)
    assert result.attempted > 10
    assert result.failed == 0
