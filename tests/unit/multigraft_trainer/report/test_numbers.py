import math

import pytest

from multigraft_trainer.report.numbers import format_bytes, format_count, format_loss, format_share


@pytest.mark.parametrize(
    ("got", "want"),
    [
        pytest.param(format_loss(3.14159), "3.142", id="a loss has three decimals"),
        pytest.param(format_loss(0.0), "0.000", id="a loss of zero is zero"),
        pytest.param(format_loss(None), "-", id="an unknown loss is a dash"),
        pytest.param(format_loss(math.nan), "-", id="a loss that is not a number is a dash"),
        pytest.param(format_count(1234567), "1,234,567", id="counts have thousands separators"),
        pytest.param(format_count(None), "-", id="an unknown count is a dash"),
        pytest.param(format_share(0.974), "97 %", id="a share is in per cent"),
        pytest.param(format_share(None), "-", id="an unknown share is a dash"),
        pytest.param(format_bytes(3 * 2**30), "3.00 GiB", id="gibibytes"),
        pytest.param(format_bytes(538 * 10**6), "513 MiB", id="mebibytes"),
        pytest.param(format_bytes(0), "-", id="zero bytes stands for unknown"),
    ],
)
def test_numbers_as_people_read_them(got, want):
    assert got == want
