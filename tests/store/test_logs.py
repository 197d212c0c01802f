"""Logs of earlier systems: every format reads, malformed files get one clear sentence, exports never overstate."""

from __future__ import annotations

import doctest
import math
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smoothcert.store import logs
from smoothcert.store.logs import LogKind, read_log, write_log
from smoothcert.types import LogError, SmoothcertError, UsageError

SIX = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
GOOD = SIX + "0\t3\t3\t0.486\t1\t16.6\n20\t5\t-1\t0.0\t0\t0:01:18.206684\n"


@pytest.fixture
def log_file(tmp_path):
    def write(content: str | bytes) -> Path:
        path = tmp_path / "some.log"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def row(index=0, label=3, predict=3, radius=0.5, seconds=1.0, **extra):
    return {"index": index, "label": label, "predict": predict, "radius": radius, "seconds": seconds, **extra}


def test_examples():
    assert doctest.testmod(logs).failed == 0


def test_six_columns(log_file):
    log = read_log(log_file(GOOD))
    assert log.kind is LogKind.CERTIFICATION
    assert log.columns == ("idx", "label", "predict", "radius", "correct", "time")
    assert [str(field.type) for field in log.table.schema] == ["int64", "int64", "int64", "double", "bool", "double"]
    assert log.table.to_pylist() == [
        {"index": 0, "label": 3, "predict": 3, "radius": 0.486, "correct": True, "seconds": 16.6},
        {"index": 20, "label": 5, "predict": -1, "radius": 0.0, "correct": False, "seconds": 78.206684},
    ]


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (
            "time\tradius\tUnperturbed Predict\tunperturbed correct\tlabel\tpredict\tidx\tcorrect\n"
            "1.5\t1e-05\t2\t0\t3\t3\t7\t1\n",
            "certification",
            {
                "seconds": 1.5,
                "radius": 1e-5,
                "clean_predict": 2,
                "clean_correct": False,
                "label": 3,
                "predict": 3,
                "index": 7,
                "correct": True,
            },
        ),
        (
            "idx\tpredict\tradius\tunperturbed predict\ttime\n4\t1\t0.9\t1\t2\n",
            "selection",
            {"index": 4, "predict": 1, "radius": 0.9, "clean_predict": 1, "seconds": 2.0},
        ),
        (
            "idx\tlabel\tpredict\tcorrect\tnote\n4\t1\t2\t0\tas is, 1.0\n",
            "prediction",
            {"index": 4, "label": 1, "predict": 2, "correct": False, "note": "as is, 1.0"},
        ),
        (
            "idx\tmean\tstd\tmin\t25 percentile\t95 percentile\tmax\n4\t.5\t0.1\t0\t0.25\t0.9\t1\n",
            "entropy",
            {"index": 4, "mean": 0.5, "std": 0.1, "min": 0.0, "p25": 0.25, "p95": 0.9, "max": 1.0},
        ),
    ],
)
def test_columns_are_found_by_name(log_file, content, kind, expected):
    log = read_log(log_file(content))
    assert log.kind == kind
    assert log.table.to_pylist() == [expected]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:01:18.206684", 78.206684),
        ("1 day, 0:01:18.2", 86478.2),
        ("2 days, 23:59:59", 259199.0),
        ("30:00:00", 108000.0),
        ("16.6", 16.6),
        ("17", 17.0),
    ],
)
def test_times(log_file, text, seconds):
    log = read_log(log_file(f"idx\tpredict\tradius\ttime\n0\t1\t0.5\t{text}\n"))
    assert log.table["seconds"].to_pylist() == [pytest.approx(seconds, rel=1e-14)]


def test_foreign_line_ends_and_byte_order_mark(log_file):
    expected = read_log(log_file(GOOD)).table
    assert read_log(log_file(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())).table.equals(expected)


def test_header_without_rows_is_an_empty_log(log_file):
    assert read_log(log_file(SIX)).table.num_rows == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ["empty"]),
        ("\n", ["line 1", "unknown header"]),
        ("a\tb\n1\t2\n", ["line 1", r"'a\tb'", "idx, label, predict, radius (certification)", "idx, mean (entropy)"]),
        ("idx,label,predict,radius\n0,1,1,0.5\n", ["line 1", "unknown header", "tab-separated"]),
        ("idx\tlabel\tpredict\tradius\tlabel\n", ["line 1", "column 5 (label)", "already there"]),
        (SIX + "0\t3\t3\t0.486\t1\n", ["line 2", "5 fields", "6 columns", r"0.486\t1'"]),
        (SIX + "0\t3\t3\t0.486\t1\t2.0\t9\n", ["line 2", "7 fields", "6 columns"]),
        (GOOD + "\n", ["line 4", "1 fields", "6 columns"]),
        (SIX + "0\t3\tx\t0.486\t1\t2.0\n", ["line 2", "column 3 (predict)", "'x' is not a whole number"]),
        (SIX + "0\t3.0\t3\t0.486\t1\t2.0\n", ["line 2", "column 2 (label)", "'3.0' is not a whole number"]),
        (SIX + "0\t-1\t-1\t0.0\t1\t2.0\n", ["line 2", "column 2 (label)", "'-1' is negative"]),
        (SIX + "0\t3\t-2\t0.0\t0\t2.0\n", ["line 2", "column 3 (predict)", "'-2'", "abstention"]),
        (SIX + "0\t3\t3\tnan\t1\t2.0\n", ["line 2", "column 4 (radius)", "'nan' is not a finite number"]),
        (SIX + "0\t3\t3\tinf\t1\t2.0\n", ["line 2", "column 4 (radius)", "'inf' is not a finite number"]),
        (SIX + "0\t3\t3\t1e999\t1\t2.0\n", ["line 2", "column 4 (radius)", "'1e999' is not a finite number"]),
        (SIX + "0\t3\t3\t1_0\t1\t2.0\n", ["line 2", "column 4 (radius)", "'1_0' is not a finite number"]),
        (SIX + "0\t3\t3\t-0.1\t1\t2.0\n", ["line 2", "column 4 (radius)", "'-0.1' is negative"]),
        (SIX + "0\t3\t-1\t0.5\t0\t2.0\n", ["line 2", "column 4 (radius)", "'0.5' contradicts the abstention"]),
        (GOOD + "0\t3\t3\t0.1\t1\t2.0\n", ["line 4", "column 1 (idx)", "'0' is already on line 2"]),
        (SIX + "0\t3\t3\t0.1\tyes\t2.0\n", ["line 2", "column 5 (correct)", "'yes' is neither 0 nor 1"]),
        (SIX + "0\t3\t3\t0.1\t0\t2.0\n", ["line 2", "column 5 (correct)", "'0' contradicts label 3 and answer 3"]),
        (SIX + "0\t3\t4\t0.1\t1\t2.0\n", ["line 2", "column 5 (correct)", "'1' contradicts label 3 and answer 4"]),
        (
            "idx\tlabel\tpredict\tunperturbed predict\tunperturbed correct\n0\t3\t3\t4\t1\n",
            ["line 2", "column 5 (unperturbed correct)", "'1' contradicts label 3 and answer 4"],
        ),
        (SIX + "0\t3\t3\t0.1\t1\t1:99:00\n", ["line 2", "column 6 (time)", "'1:99:00' is not a time"]),
        (SIX + "0\t3\t3\t0.1\t1\t-1\n", ["line 2", "column 6 (time)", "'-1' is not a time"]),
        (GOOD[:-3], ["line 3", "column 6", "0:01:18.2066'", "no line end"]),
        (GOOD[:-20], ["line 3", "no line end"]),
        (SIX.rstrip(), ["line 1", "no line end"]),
        (b"\x89PNG\r\n\x1a\n", ["line 1", "not text", "0x89"]),
        (GOOD.encode() + b"\0\0\n", ["line 4", "not text", "0x00"]),
    ],
)
def test_malformed_logs_get_one_sentence(log_file, content, said):
    path = log_file(content)
    with pytest.raises(LogError) as caught:
        read_log(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert [part for part in said if part not in message] == [], message
    assert "\n" not in message
    assert message.endswith(".")


def test_unreadable_paths(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(LogError, match="cannot be read"):
            read_log(path)


def test_written_text(tmp_path):
    path = tmp_path / "out.tsv"
    write_log(
        path,
        [
            row(0, radius=0.2499999, seconds=78.206684, counts=[1, 2]),
            row(np.int64(20), predict=-1, radius=0.0, seconds=90061.5),
            row(40, label=1, radius=2, seconds=0),
        ],
        classic=True,
    )
    assert path.read_bytes().decode() == (
        SIX + "0\t3\t3\t0.249999\t1\t0:01:18.206684\n20\t3\t-1\t0.0\t0\t25:01:01.500000\n"
        "40\t1\t3\t2.000000\t0\t0:00:00.000000\n"
    )
    assert os.listdir(tmp_path) == ["out.tsv"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(-1, 9), st.floats(0, 1e6), st.floats(0, 1e6, allow_subnormal=False)),
        max_size=6,
    )
)
def test_what_is_written_reads_back_and_is_never_larger(tmp_path, answers):
    rows = [row(i, label, y, r if y >= 0 else 0.0, s) for i, (label, y, r, s) in enumerate(answers)]
    path = tmp_path / "out.tsv"
    write_log(path, rows)
    back = read_log(path).table.to_pylist()
    assert len(back) == len(rows)
    for stored, read, text in zip(rows, back, path.read_text().splitlines()[1:], strict=True):
        assert stored["radius"] - 2e-6 <= read["radius"] <= stored["radius"]
        assert Decimal(text.split("\t")[3]) <= Decimal(stored["radius"])
        assert [read[key] for key in ("index", "label", "predict")] == [
            stored[key] for key in ("index", "label", "predict")
        ]
        assert read["correct"] == (stored["label"] == stored["predict"])
        assert read["seconds"] == pytest.approx(stored["seconds"], abs=1e-6)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"index": 0, "label": 3, "predict": 3, "seconds": 1.0}, "row 2 .* has no 'radius'"),
        (row(1, radius=math.nan), "row 2 .* negative or not finite"),
        (row(1, radius=math.inf), "row 2 .* negative or not finite"),
        (row(1, radius=-0.5), "row 2 .* negative or not finite"),
        (row(1, label=-1), "row 2 .* negative or not finite"),
        (row(1, label=None), "row 2 .* not all values are numbers"),
        (row(1, seconds="soon"), "row 2 .* not all values are numbers"),
        (row(0), "row 2 .* index 0 is already there"),
    ],
)
def test_rows_that_no_log_can_hold_leave_the_file_alone(tmp_path, bad, said):
    path = tmp_path / "out.tsv"
    path.write_text("before")
    with pytest.raises(UsageError, match=said):
        write_log(path, [row(0), bad])
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.tsv"]


def test_a_radius_of_a_log_is_written_as_it_was_printed(tmp_path):
    texts = ["1.15", "1.91", "0.850", "2", "1e-05", "0.0"]
    rows = [row(i, radius=float(text)) | {"logged_radius": text} for i, text in enumerate(texts)]
    write_log(tmp_path / "out.tsv", [*rows, row(9, radius=1.15)])
    assert list(read_log(tmp_path / "out.tsv").radii) == [*texts, "1.149999"]  # our radii are rounded down
    for text in ("1.151", "1.15\t1", "about 1", ""):
        with pytest.raises(UsageError, match=r"row 1 .* logged radius .* is not 1\.15"):
            write_log(tmp_path / "out.tsv", [row(0, radius=1.15) | {"logged_radius": text}])


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(SmoothcertError, match=r"cannot be written"):
        write_log(tmp_path / "missing" / "out.tsv", [row()])


@pytest.mark.parametrize(
    ("pattern", "kind", "files", "columns"),
    [
        ("cohen-cifar10-050/*", "certification", 1, 6),
        ("aces-*/*_certification", "certification", 1, 8),
        ("aces-*/*_selection_*", "selection", 101, 5),
        ("aces-*/*_entropies", "entropy", 1, 8),
        ("aces-*/lanet_core_prediction", "prediction", 1, 5),
    ],
)
def test_published_formats(shared_data, pattern, kind, files, columns):
    read = [read_log(path) for path in shared_data.glob(pattern)]
    assert len(read) == files
    assert {log.kind.value for log in read} == {kind}
    assert {(log.table.num_rows, len(log.columns)) for log in read} == {(500, columns)}


def test_no_published_log_is_left_out(shared_data):
    assert {path.name for path in (shared_data / "aces-cifar10-consistency-025").iterdir()} == {
        "lanet_core_prediction",
        *(f"cifar10_consistency_025_{what}" for what in ("certification", "entropies")),
        *(f"cifar10_consistency_025_selection_{step / 100:.2f}" for step in range(101)),
    }


@pytest.mark.parametrize(
    ("radius", "time", "problem"),
    [
        ("1e308", "1.5", "is larger than any radius"),
        ("1e15", "1.5", "is larger than any radius"),
        ("0.5", "9" * 400, "is not a time"),
        ("0.5", f"{'9' * 400} days, 0:00:01", "is not a time"),
        ("0.5", f"{'9' * 400}:00:01", "is not a time"),
    ],
)
def test_numbers_beyond_all_measure(tmp_path, radius, time, problem):
    (tmp_path / "log").write_text(f"idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t{radius}\t1\t{time}\n")
    with pytest.raises(LogError, match=problem):
        read_log(tmp_path / "log")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_nothing_but_a_mark_of_its_encoding(tmp_path, content):
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(LogError, match="the log is empty"):
        read_log(tmp_path / "log")
