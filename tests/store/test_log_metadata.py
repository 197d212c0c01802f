"""The columns of a log that say what a radius is worth: written, read back, refused where they cannot be right."""

from __future__ import annotations

import pytest

from smoothcert.store.logs import METADATA, read_log, write_log
from smoothcert.types import Arithmetic, Guarantee, LogError, Norm, UsageError

SIX = "idx\tlabel\tpredict\tradius\tcorrect\ttime"
KNOWN = {
    "norm": "l1",
    "guarantee": "pointwise",
    "arithmetic": "exact",
    "runtime": "eager",
    "model": "0f" * 32,
    "seed": 2**63 - 1,
    "alpha": 2e-06,
    "n": 100_000,
}


def row(index=0, **known):
    return {"index": index, "label": 3, "predict": 3, "radius": 0.5, "seconds": 1.0, **known}


def text(**fields):
    """A log of one input with the fields given, as text."""
    lines = ["\t".join([SIX, *fields]), "\t".join(["0", "3", "3", "0.5", "1", "1.0", *map(str, fields.values())])]
    return "\n".join(lines) + "\n"


def test_what_is_known_comes_back(tmp_path):
    path = tmp_path / "log"
    write_log(path, [row(0, **KNOWN), row(1), row(2, norm=Norm.L1, guarantee=Guarantee.GLOBAL)])
    header = path.read_text().splitlines()[0]
    assert header == "\t".join([SIX, *METADATA])
    full, empty, enums = read_log(path).table.select(METADATA).to_pylist()
    assert full == KNOWN
    assert empty == dict.fromkeys(METADATA)
    assert (enums["norm"], enums["guarantee"], enums["arithmetic"]) == ("l1", "global", None)
    types = {name: str(read_log(path).table.schema.field(name).type) for name in METADATA}
    assert (types["norm"], types["seed"], types["alpha"], types["n"]) == ("string", "int64", "double", "int64")


def test_the_classic_form_has_six_columns(tmp_path):
    write_log(tmp_path / "log", [row(0, **KNOWN)], classic=True)
    assert (tmp_path / "log").read_text() == f"{SIX}\n0\t3\t3\t0.500000\t1\t0:00:01.000000\n"
    assert not set(METADATA) & set(read_log(tmp_path / "log").table.column_names)


def test_columns_are_found_by_name(tmp_path):
    path = tmp_path / "log"
    path.write_text("guarantee\tn\tidx\tlabel\tpredict\tradius\tNorm\nrouted\t7\t0\t3\t3\t0.5\tlinf\n")
    (found,) = read_log(path).table.to_pylist()
    assert (found["guarantee"], found["n"], found["norm"]) == ("routed", 7, "linf")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("norm", "l7", "is not one of l0, l1, l2, linf"),
        ("norm", "L2", "is not one of"),
        ("norm", "<script>", "is not one of"),
        ("guarantee", "total", "is not one of global, pointwise, memory, routed"),
        ("guarantee", "=1+1", "is not one of"),
        ("arithmetic", "double", "is not one of exact, float"),
        ("runtime", "a\x1b[2J", "is not the name of a runtime"),
        ("runtime", "=cmd()", "is not the name of a runtime"),
        ("runtime", "x" * 101, "is not the name of a runtime"),
        ("model", "resnet110", "is not a SHA-256 in hexadecimal"),
        ("model", "0F" * 32, "is not a SHA-256 in hexadecimal"),
        ("seed", "-1", "is not a whole number from 0"),
        ("seed", str(2**63), "is not a whole number from 0"),
        ("alpha", "0", "does not lie strictly between 0 and 1"),
        ("alpha", "1.0", "does not lie strictly between 0 and 1"),
        ("alpha", "nan", "is not a finite number"),
        ("n", "-5", "is negative"),
        ("n", "1e5", "is not a whole number"),
    ],
)
def test_wrong_fields_are_refused_in_a_sentence(tmp_path, name, value, said):
    path = tmp_path / "log"
    path.write_bytes(text(**{name: value}).encode())
    with pytest.raises(LogError, match=rf"log, line 2, column 7 \({name}\): .* {said}") as error:
        read_log(path)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm", "l7"), ("guarantee", "total"), ("runtime", "a\tb"), ("runtime", ""), ("model", "x"), ("alpha", 2.0)],
)
def test_what_no_log_can_hold_is_not_written(tmp_path, name, value):
    with pytest.raises(UsageError, match=f"row 2 cannot be written to a log: its {name} "):
        write_log(tmp_path / "log", [row(0), row(1, **{name: value})])
    assert not (tmp_path / "log").exists()


def test_arithmetic_of_certificates(tmp_path):
    write_log(tmp_path / "log", [row(0, arithmetic=Arithmetic.EXACT)])
    assert read_log(tmp_path / "log").table["arithmetic"].to_pylist() == ["exact"]
