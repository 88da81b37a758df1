import pytest

from multigraft_trainer.report.printable import printable


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("team-a/support", "team-a/support", id="a name stays as it is"),
        pytest.param("größer ≤ 5", "größer ≤ 5", id="letters of any script stay"),
        pytest.param("a\x1b[31mred", "a [31mred", id="an escape character cannot colour the terminal"),
        pytest.param("one\ntwo\r\x07", "one two  ", id="line ends and bells become spaces"),
        pytest.param("a\u202eb", "a b", id="a direction override cannot reorder the line"),
    ],
)
def test_printable(text, want):
    assert printable(text) == want
