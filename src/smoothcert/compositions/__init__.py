"""Classifiers composed of several models, described by a YAML file: its form, and how it is loaded."""

from smoothcert.compositions.files import (
    KINDS,
    AcesOf,
    Composition,
    CompositionFile,
    ConsensusOf,
    DenoisedOf,
    EnsembleOf,
    ExpertOf,
    RoutedOf,
    is_composition,
    names_code,
    read_composition,
    write_composition,
)
from smoothcert.compositions.loading import (
    ComposedModel,
    Opened,
    load_model,
    load_smoothed,
    open_classifier,
    trained_noise,
)

__all__ = [
    "KINDS",
    "AcesOf",
    "ComposedModel",
    "Composition",
    "CompositionFile",
    "ConsensusOf",
    "DenoisedOf",
    "EnsembleOf",
    "ExpertOf",
    "Opened",
    "RoutedOf",
    "is_composition",
    "load_model",
    "load_smoothed",
    "names_code",
    "open_classifier",
    "read_composition",
    "trained_noise",
    "write_composition",
]
