"""What attnflow computes is what it computed when golden.json.gz was recorded.

`record.py` says what is recorded. After a change of behaviour that is intended, record it again and
say in the commit what changed:

    python -m tests.golden.record --output tests/golden/golden.json.gz --data numpred.val
"""

from pathlib import Path

import pytest

from tests.golden.differences import Tolerance, differences
from tests.golden.record import SECTIONS, Scope, compare, data_file, load, record, wanted

GOLDEN = load(Path(__file__).parent / "golden.json.gz")["results"]


def test_every_section_is_recorded():
    assert list(GOLDEN) == wanted(Scope(exhaustive=False, data=Path("numpred.val")))


@pytest.mark.parametrize("name", GOLDEN)
def test_results_are_what_they_were(name):
    scope = Scope(exhaustive=False, data=data_file())
    if SECTIONS[name].needs_data and scope.data is None:
        pytest.skip("ATTNFLOW_NUMPRED does not name a numpred file")
    found = compare(name, GOLDEN[name], record(name, scope))
    # A result may say more than it did.
    changed = [difference for difference in found if not difference.added]
    assert not changed, "\n".join(str(difference) for difference in changed[:20])


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": [1, 0.5]}, {"a": [1, 0.5000001]}, []),
        ({"a": [1, 0.5]}, {"a": [1, 0.6]}, ["/a[1]: 0.5 -> 0.6 (+0.1)"]),
        ({"a": [1]}, {"a": [1, 2]}, ["/a: [1] -> [1, 2]"]),
        ({"a": None}, {"b": True}, ["/a: None -> 'missing'", "/b: new: True"]),
        ({"a": True, "b": 0}, {"a": 1, "b": None}, ["/a: True -> 1", "/b: 0 -> None"]),
        ({"n_at_least": 1}, {"n_at_least": 2}, []),
        ({"n_at_least": [0.5]}, {"n_at_least": [0.4]}, ["/n_at_least[0]: 0.5 -> 0.4 (-0.1)"]),
    ],
)
def test_differences_are_found(old, new, found):
    tolerance = Tolerance(relative=1e-6, absolute=0.0)
    assert [str(difference) for difference in differences(old, new, tolerance)] == found
