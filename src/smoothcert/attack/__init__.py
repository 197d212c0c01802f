"""Attacks on the smoothed classifier, and what they say about its certificates."""

from smoothcert.attack.certificates import Certified, certified_by_run, certify_inputs, refuse_contradictions
from smoothcert.attack.pgd import (
    AttackOutcome,
    AttackResult,
    AttackSettings,
    adversarial_input,
    attack_dataset,
    attack_input,
)

__all__ = [
    "AttackOutcome",
    "AttackResult",
    "AttackSettings",
    "Certified",
    "adversarial_input",
    "attack_dataset",
    "attack_input",
    "certified_by_run",
    "certify_inputs",
    "refuse_contradictions",
]
