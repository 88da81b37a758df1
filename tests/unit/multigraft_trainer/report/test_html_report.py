import io
import re
from html.parser import HTMLParser

import pytest
from matplotlib.image import imread

from builders.run_result import make_horizon, make_job, make_result, make_step
from multigraft_trainer.report.html_report import ReportPaths, write_report
from multigraft_trainer.report.results import JobState, RowAccount


class Page(HTMLParser):
    """Collects what the tests ask about."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def report(tmp_path) -> ReportPaths:
    failed = make_job("team-b/beta", state=JobState.FAILED, reason="NonFinite", message="3 steps in a row", history=())
    return write_report(make_result(make_job(), failed), tmp_path)


def test_three_files_and_no_leftovers(report, tmp_path):
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss_curves.png", "plan.png", "report.html"]


def test_pictures_are_png_and_not_blank(report):
    for path in (report.loss_curves, report.plan):
        pixels = imread(path)
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 600
        assert pixels[..., :3].std() > 0.02


def test_the_page_stands_alone_and_is_well_formed(report):
    text = report.html.read_text()
    page = Page(text)
    assert page.open == []
    sources = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not [tag for tag, _ in page.tags if tag in ("link", "script")]
    assert not re.search(r"https?://", re.sub(r"base64,[^\"]+", "", text))


def test_the_page_is_accessible(report):
    page = Page(report.html.read_text())
    assert ("html", {"lang": "en"}) in page.tags
    assert all(len(attrs["alt"]) > 20 for tag, attrs in page.tags if tag == "img")
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    assert sum(tag == "h1" for tag, _ in page.tags) == 1


def test_the_page_says_what_happened_to_each_job(report):
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", report.html.read_text()))
    for want in (
        "default/alpha",
        "3.881 -&gt; 3.136",
        "NonFinite",
        "3 steps in a row",
        "EmptyMessages",
        "torch 2.11.0",
    ):
        assert want in text


def test_text_is_escaped(tmp_path):
    job = make_job("x/<script>alert(1)</script>", message='"><img src=x onerror=alert(1)>', state=JobState.FAILED)
    page = Page(write_report(make_result(job), tmp_path).html.read_text())
    assert "script" not in {tag for tag, _ in page.tags}
    assert sum(tag == "img" for tag, _ in page.tags) == 2


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(make_result(horizons=(), num_microbatches=0, train_seconds=0.0), id="nothing was trained"),
        pytest.param(
            make_result(make_job(history=(make_step(1, loss=None),), heldout_loss_after=float("nan"), rows=None)),
            id="every loss is not finite",
        ),
        pytest.param(
            make_result(
                *[make_job(f"default/job-{i}") for i in range(40)], horizons=(make_horizon(("a", "b"), 300),) * 3
            ),
            id="more jobs and microbatches than a picture holds",
        ),
        pytest.param(make_result(make_job("default/學習-𝔘")), id="a name that the font lacks"),
        pytest.param(make_result(make_job("default/$x_{$")), id="a name that looks like mathematics"),
        pytest.param(
            make_result(make_job(history=tuple(make_step(i) for i in range(1, 30_000)))), id="a history of 30,000 steps"
        ),
        pytest.param(
            make_result(make_job(rows=RowAccount(0, 0), total_steps=None, adapter_path=None)), id="an empty dataset"
        ),
    ],
)
def test_a_report_is_written_whatever_the_result(result, tmp_path):
    page = write_report(result, tmp_path)
    assert io.BytesIO(page.plan.read_bytes()).read(4) == b"\x89PNG"
    assert "nan" not in Page(page.html.read_text()).rawdata.lower()
