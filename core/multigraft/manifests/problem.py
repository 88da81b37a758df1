"""A problem or note about a manifest, printed as one line."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Problem:
    """One line for the user: where, which field, what was found and what is wanted."""

    file: str
    message: str
    document: str = ""  # `document 2`
    line: int | None = None
    object: str = ""  # `AdapterJob team-a/support`
    field: str = ""  # `spec.training.learningRate`

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line is not None else ""
        owner = f" ({self.object})" if self.object else ""
        where = f" {self.document}{line}{owner}:" if self.document else ""
        field = f" {self.field}:" if self.field else ""
        text = " ".join(f"{self.file}:{where}{field} {self.message}".split())
        return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)

    def as_json(self) -> dict[str, str | int | None]:
        """Give the parts for `--json`."""
        return asdict(self)
