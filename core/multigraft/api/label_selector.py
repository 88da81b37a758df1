"""Kubernetes' label selector: which objects are meant, by their labels."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from multigraft.api.rules import JsonObject, Rule
from multigraft.api.schema import ATOMIC, Choice, LabelKey, LabelValue, Spec


class SelectorOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


def _values_fit_operator(requirement: JsonObject) -> bool:
    return bool(requirement.get("values")) == (requirement["operator"] in {"In", "NotIn"})


class LabelRequirement(Spec):
    """One condition on one label."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(has(self.values) && size(self.values) > 0) == (self.operator in ['In', 'NotIn'])",
            holds=_values_fit_operator,
            message="must be given for operator In and NotIn, and left out for Exists and DoesNotExist",
            field="values",
            reads=("operator", "values"),
        ),
    )

    key: LabelKey = Field(description="Label key.")
    operator: Choice[SelectorOperator] = Field(description="How the label's value relates to `values`.")
    values: list[LabelValue] = Field(
        default_factory=list, max_length=64, json_schema_extra=ATOMIC, description="Values for In and NotIn."
    )

    def matches(self, labels: dict[str, str]) -> bool:
        """Say whether `labels` meets this condition; as in Kubernetes, NotIn also takes objects without the label."""
        match self.operator:
            case SelectorOperator.IN:
                return labels.get(self.key) in self.values
            case SelectorOperator.NOT_IN:
                return labels.get(self.key) not in self.values
            case SelectorOperator.EXISTS:
                return self.key in labels
            case SelectorOperator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelector(Spec):
    """Objects that have all the labels and meet all the conditions; an empty selector takes every object."""

    match_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Labels that an object must have."
    )
    match_expressions: list[LabelRequirement] = Field(
        default_factory=list, max_length=64, json_schema_extra=ATOMIC, description="Conditions that labels must meet."
    )

    def matches(self, labels: dict[str, str]) -> bool:
        """Say whether an object with `labels` is meant."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
