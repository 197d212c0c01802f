"""Datasets by specifier: class lists, labels in CSV files, sizes, tables, ImageNet, code of the user; and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from smoothcert import Gaussian, Smoothed, data
from smoothcert.certify import Cohen
from smoothcert.data.classes import ClassList, imagenet_classes, mismatch, read_classes
from smoothcert.evaluate import certify_dataset
from smoothcert.tensors import as_tensor
from smoothcert.types import DataError, UsageError

NAMES = ["airplane", "bird", "cat", "dog"]


def picture(path: Path, colour: int | tuple[int, int, int] = 51, size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def folders(top: Path, *names: str) -> Path:
    for name in names:
        picture(top / name / "a.png")
    return top


def labels(dataset: data.Dataset) -> list[int]:
    return [dataset[index][1] for index in range(len(dataset))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.txt", "airplane\nBird\ncat\nDOG\n"),
        ("names.txt", "\ufeffairplane\r\nbird\r\ncat\r\ndog"),
        ("names.json", json.dumps(NAMES)),
        ("names.json", json.dumps({str(number): name for number, name in enumerate(NAMES)})),
        ("names.json", json.dumps({str(number): [f"n0000000{number}", name] for number, name in enumerate(NAMES)})),
        ("names.json", json.dumps({name: number for number, name in enumerate(NAMES)})),
        ("config.json", json.dumps({"id2label": {str(number): f"{name}, x" for number, name in enumerate(NAMES)}})),
    ],
)
def test_a_class_list_keeps_the_labels_of_the_model(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    dataset = data.load(f"{folders(tmp_path / 'set', 'dog', 'bird')},classes={tmp_path / name}")
    assert labels(dataset) == [1, 3]
    assert dataset.num_classes == 4
    assert not dataset.by_name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("names.txt", b"airplane\nbird\n", "has the class 'dog', which is not among the 2 of .*names.txt"),
        ("names.txt", b"dog\nbird\ndog\n", "several classes named 'dog'"),
        ("names.txt", b"dog\n\nbird\n", "line 2 is empty"),
        ("names.txt", b" \n", "empty list"),
        ("names.txt", b"\xff\xfed\0o\0g\0", "not text in UTF-8"),
        ("names.json", b"{", "not a list of classes"),
        ("names.json", b"3", "write a list of names"),
        ("names.json", b"[]", "empty list"),
        ("names.json", b'["dog", 3]', "class 1 is not a text"),
        ("names.json", b'{"0": "dog", "2": "bird"}', "none with the number 1"),
        ("names.json", b'{"dog": 0, "bird": 0}', "'dog' and 'bird' are both 0"),
        ("names.json", b"[" * 100_000, "nested too deeply"),
        ("absent.txt", None, "absent.txt does not exist"),
    ],
)
def test_class_lists_that_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    folders(tmp_path / "set", "dog", "bird")
    with pytest.raises(DataError, match=message):
        data.load(f"{tmp_path / 'set'},classes={tmp_path / name}")


def test_a_class_that_only_another_split_has_keeps_its_number(tmp_path):
    folders(tmp_path / "train", "a", "b", "c")
    folders(tmp_path / "val", "a", "c")
    assert labels(data.load(tmp_path, split="val")) == [0, 2]


def test_numbered_folders_need_their_order(tmp_path):
    folders(tmp_path, "0", "2", "10")
    with pytest.raises(DataError, match="numbers, whose order is not that of their text"):
        data.load(tmp_path)
    assert data.load(f"{tmp_path},classes=folders").class_names == ("0", "10", "2")


@pytest.mark.parametrize(
    ("content", "option", "expected"),
    [
        ("file,label\nb.png,2\na.png,0\n", "", [2, 0]),
        ("Image, Target\na.png,1\n", "", [1]),
        ("label,path\ncat,sub/c.png\nairplane,a.png\n", "", [1, 0]),
        ("label,path\ncat,sub/c.png\nairplane,a.png\n", ",classes=names.txt", [2, 0]),
        ('filename,class\n"a.png",3\n\n', ",classes=names.txt,labels=labels.csv", [3]),
    ],
)
def test_labels_in_a_csv_file(tmp_path, content, option, expected):
    for name in ("a.png", "b.png", "sub/c.png"):
        picture(tmp_path / name)
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    (tmp_path / "labels.csv").write_text(content)
    assert labels(data.load(f"{tmp_path}{option}")) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,label\nx.png,1\n", "names 'x.png' in line 2, which does not exist"),
        (b"file,label\n../a.png,1\n", "names '../a.png' in line 2, which is not in"),
        (b"file,label\n/etc/passwd,1\n", "'/etc/passwd' in line 2, which is not in"),
        (b"file,label\nC:\\x.png,1\n", "which is not in"),
        (b"file,label\nlink.png,1\n", "'link.png' in line 2, which is not in"),
        (b"file,label\na.png,\n", "no label in line 2"),
        (b"file,label\na.png\n", "no label in line 2"),
        (b"file,label\n,1\n", "no file in line 2"),
        (b"file,label\na.png,wolf\n", "has the class 'wolf', which is not among the 4 of"),
        (b"file,label\na.png,4\n", "has the class '4', which is not among"),
        (b"file,label\na.png,-1\n", "has the class '-1', which is not among"),
        (b"name,label\na.png,1\n", "needs a column named file, .* or path; its columns are name, label"),
        (b"file,kind\na.png,1\n", "needs a column named label, class or target"),
        (b"file,label\n", "lists no images"),
        (b"", "needs a column"),
        (b"file,label\n" + b"a" * 200_000 + b",1\n", "field larger than field limit"),
        (b"file,label\n" + b"a" * 5_000 + b",1\n", "which does not exist"),
        (b"file,label\na\0.png,1\n", "does not exist|line contains NUL"),
        (b"\xff\xfef\0", "not a CSV file in UTF-8"),
        (b'file,label\n"a.png,1\n', "not a CSV file"),
    ],
)
def test_csv_files_of_labels_that_are_refused(tmp_path, content, message):
    picture(tmp_path / "outside.png")
    picture(tmp_path / "set" / "a.png")
    (tmp_path / "set" / "link.png").symlink_to(tmp_path / "outside.png")
    (tmp_path / "set" / "names.txt").write_text("\n".join(NAMES))
    (tmp_path / "set" / "labels.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.load(f"{tmp_path / 'set'},classes=names.txt")


def test_labels_that_are_numbers_but_not_classes(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("file,label\na.png,-1\n")
    with pytest.raises(DataError, match="has the label -1; number classes from 0"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "option", "shape"),
    [
        (51, 51, "", (1, 4, 4)),
        ((9, 8, 7), 51, "", (3, 4, 4)),
        (51, 51, ",channels=3", (3, 4, 4)),
        ((9, 8, 7), (9, 8, 7), ",channels=1", (1, 4, 4)),
        (51, 51, ",size=2x3", (1, 2, 3)),
        (51, 51, ",size=7", (1, 7, 7)),
    ],
)
def test_images_keep_their_size_and_channels(tmp_path, first, second, option, shape):
    picture(tmp_path / "a" / "1.png", first)
    picture(tmp_path / "a" / "2.png", second)
    dataset = data.load(f"{tmp_path}{option}")
    assert dataset.shape == shape
    assert [dataset[index][0].shape for index in range(2)] == [shape, shape]
    if first == 51:
        torch.testing.assert_close(dataset[0][0], torch.full(shape, 0.2))


def test_other_sizes_and_colours_are_refused_not_converted(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "a" / "2.png", size=(5, 4))
    with pytest.raises(  # before any image is used
        DataError, match=r"2\.png has 4×5 pixels, but the first image has 4×4; add size=224 .* or size=H"
    ):
        data.load(tmp_path)
    picture(tmp_path / "a" / "2.png", (9, 8, 7))
    dataset = data.load(tmp_path)
    with pytest.raises(DataError, match=r"2\.png has colours, but the first image is grey; add channels=3"):
        dataset[1]
    assert data.load(f"{tmp_path},size=4x4,channels=3")[1][0].shape == (3, 4, 4)


def test_images_of_16_bits_are_not_cut_to_8(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        data.load(tmp_path)[0]
    with pytest.raises(UsageError, match="more than 8 bits"):
        as_tensor(Image.fromarray(np.full((4, 4), 300, np.uint16)))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("size=big", "size must be a number, as 224, or HEIGHTxWIDTH"),
        ("size=0", "size must be"),
        ("size=4x0", "size must be"),
        ("size=-3", "size must be"),
        ("size=99999x99999", "too large"),
        ("channels=2", "channels must be 1 or 3"),
        ("sice=3", "unknown option of this data 'sice'; did you mean 'size'"),
    ],
)
def test_options_that_are_refused(tmp_path, option, message):
    folders(tmp_path, "a", "b")
    with pytest.raises(UsageError, match=message):
        data.load(f"{tmp_path},{option}")


def test_imagenet_has_its_classes_in_order():
    listed = imagenet_classes()
    assert len(listed.names) == 1000
    assert (listed.number("n01440764"), listed.number("n15075141"), listed.number("great_white_shark")) == (0, 999, 2)
    with pytest.raises(DataError, match="several classes named 'crane'"):
        listed.number("crane")


def test_imagenet_by_name(tmp_path):
    with pytest.raises(DataError, match=r"imagenet/val/n01440764/\*\.JPEG, one folder for each of the 1,000 classes"):
        data.load("imagenet", root=tmp_path)
    with pytest.raises(DataError, match="registration"):
        data.fetch("imagenet", root=tmp_path)
    assert not data.available("imagenet", root=tmp_path)
    picture(tmp_path / "imagenet" / "val" / "n01443537" / "a.JPEG", (9, 8, 7), (300, 280))
    dataset = data.load("imagenet", root=tmp_path)
    assert (dataset.name, dataset.split, dataset.shape, dataset.num_classes) == (
        "imagenet",
        "test",
        (3, 224, 224),
        1000,
    )
    assert dataset[0][1] == 1
    assert data.available("imagenet", root=tmp_path)
    assert data.load("imagenet,size=64", split="val", root=tmp_path)[0][0].shape == (3, 64, 64)


def test_a_part_of_imagenet_keeps_its_labels(tmp_path):
    folders(tmp_path, "n01443537", "n15075141")
    assert labels(data.load(tmp_path)) == [1, 999]
    assert labels(data.load(f"{tmp_path},classes=folders")) == [0, 1]
    folders(tmp_path, "n00000000")  # not a class of ImageNet
    assert labels(data.load(tmp_path)) == [0, 1, 2]


def test_images_of_imagenet(tmp_path):
    foolbox = pytest.importorskip("foolbox")
    listed, found = imagenet_classes(), sorted((Path(foolbox.__file__).parent / "data").glob("imagenet_*.jpg"))
    wnids = [line.split()[0] for line in (Path(data.__file__).parent / "imagenet.txt").read_text().splitlines()]
    for path in found:
        number = int(path.stem.rpartition("_")[2])
        folder = tmp_path / "imagenet" / "val" / wnids[number]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{path.stem}.JPEG").write_bytes(path.read_bytes())
    dataset = data.load("imagenet", root=tmp_path)
    assert len(dataset) == len(found) == 20
    assert sorted(labels(dataset)) == sorted(int(path.stem.rpartition("_")[2]) for path in found)
    assert listed.names[22] == "bald eagle"
    assert all(dataset[index][0].shape == (3, 224, 224) for index in range(3))


GREY = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
KERAS = {"x_train": GREY, "y_train": [0, 1, 5], "x_test": GREY[:2], "y_test": [1, 0]}
MEDMNIST = {
    f"{split}_{part}": value
    for split, count in (("train", 3), ("val", 2), ("test", 1))
    for part, value in (("images", GREY[:count]), ("labels", np.arange(count, dtype=np.uint8)[:, None]))
}


@pytest.mark.parametrize(
    ("arrays", "split", "expected", "classes"),
    [
        (KERAS, "train", [0, 1, 5], 6),
        (KERAS, "test", [1, 0], 6),
        (MEDMNIST, "train", [0, 1, 2], 3),
        (MEDMNIST, "val", [0, 1], 3),
        (MEDMNIST, "test", [0], 3),
        ({"images": GREY, "y": [0, 1, 1]}, "val", [0, 1, 1], 2),
    ],
)
def test_npz_files_with_splits(tmp_path, arrays, split, expected, classes):
    np.savez(tmp_path / "d.npz", **arrays)
    dataset = data.load(tmp_path / "d.npz", split=split)
    assert (labels(dataset), dataset.num_classes, dataset.shape) == (expected, classes, (1, 4, 4))
    torch.testing.assert_close(dataset[0][0], torch.from_numpy(GREY[:1]).float() / 255)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": GREY, "y_train": [0, 1, 2]}, "no split 'test', only train"),
        ({**KERAS, "y_train": [0, 1, 2**41]}, "has label 2199023255552 at image 2, but classes are 0 to 999999"),
        ({"x_test": GREY}, "no key 'y_test' for the labels of 'x_test'"),
        ({"x": GREY, "y": np.zeros((3, 14), int)}, "has 14 labels for each image; certification needs a single class"),
    ],
)
def test_npz_files_that_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "d.npz")


def test_classes_of_arrays_can_be_named(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    np.savez(tmp_path / "d.npz", x=GREY, y=[0, 1, 2])
    assert data.load(f"{tmp_path / 'd.npz'},classes=names.txt").class_names == tuple(NAMES)
    with pytest.raises(DataError, match="lists 4 classes, but the dataset has 10"):
        data.load(f"digits,classes={tmp_path / 'names.txt'}")


def table(path: Path, columns: dict[str, list]) -> str:
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join(",".join(map(str, row)) for row in [list(columns), *rows]) + "\n")
    return str(path)


FLOWERS = {"width": [1, 2, 3], "height": [0.5, -1.5, 2e9], "species": ["setosa", "other", "setosa"]}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables(tmp_path, suffix):
    path = table(tmp_path / f"t{suffix}", FLOWERS)
    dataset = data.load(f"{path},label=species")
    assert (labels(dataset), dataset.class_names, dataset.by_name) == ([1, 0, 1], ("other", "setosa"), True)
    assert (dataset.shape, dataset.levels, dataset.input_range) == ((2,), None, None)
    assert dataset[1][0].dtype == torch.float32
    assert dataset[2][0].tolist() == [3.0, 2e9]
    (tmp_path / "names.txt").write_text("setosa\nother\nthird\n")
    chosen = data.load(f"{path},label=species,features=height,classes=names.txt")
    assert (labels(chosen), chosen.num_classes, chosen[0][0].tolist()) == ([0, 1, 0], 3, [0.5])


@pytest.mark.parametrize("values", [[0, 2], [0.0, 2.0], [False, True]])
def test_tables_with_numbered_classes(tmp_path, values):
    dataset = data.load(table(tmp_path / "t.parquet", {"Target": values, "a": [True, False]}))
    assert labels(dataset) == [int(value) for value in values]
    assert not dataset.by_name


def test_a_folder_of_tables_has_splits(tmp_path):
    table(tmp_path / "train.csv", {"a": [1, 2, 3], "y": ["u", "v", "w"]})
    table(tmp_path / "test.csv", {"a": [4, 5], "y": ["w", "u"]})
    assert labels(data.load(tmp_path)) == [2, 0]  # although no row of the test set is of class v
    assert data.load(tmp_path, split="train").name == data.load(tmp_path).name == tmp_path.name
    with pytest.raises(DataError, match="no split 'val', only train, test"):
        data.load(tmp_path, split="val")


@pytest.mark.parametrize(
    ("name", "content", "option", "message"),
    [
        ("t.csv", b"a,b\n1,2\n", "", "no column named label, target, class, y; its columns are a, b: choose"),
        ("t.csv", b"a,b\n1,2\n", ",label=c", "no column 'c'; its columns are a, b"),
        ("t.csv", b"a,y\n1,0\n,1\n", "", "no value in column 'a' of row 2"),
        ("t.csv", b"a,y\n1,0\nNaN,1\n", "", "no value in column 'a' of row 2"),
        ("t.csv", b"a,y\n1,0\n2,\n", "", "no value in column 'y' of row 2"),
        ("t.csv", b"a,y\n1,u\n2,\n", "", "no label in column 'y' of row 2"),
        ("t.csv", b"a,y\n1,0\ninf,1\n", "", "infinite value in column 'a' of row 2"),
        ("t.csv", b"a,y\n1,0\n1e300,1\n", "", "infinite value in column 'a' of row 2"),
        ("t.csv", b"a,y\nred,0\n", "", "the column 'a' of type string, not of numbers; .* features=a:b:c"),
        ("t.csv", b"a,y\n2020-01-01,0\n", "", "not of numbers"),
        ("t.csv", b"a,y\n1,0.5\n", "", "labels of type double"),
        ("t.csv", b"a,y\n1,-1\n", "", "has the label -1; number classes from 0"),
        ("t.csv", b"a,y\n1,0\n", ",features=a:z", "no feature 'z'"),
        ("t.csv", b"a,y\n1,0\n", ",features=y", "no feature 'y'"),
        ("t.csv", b"a,a,y\n1,2,0\n", "", "two columns named 'a'"),
        ("t.csv", b"y\n1\n", "", "has 0 features and 1 rows"),
        ("t.csv", b"a,y\n", "", "1 features and 0 rows"),
        ("t.csv", b"", "", "is not a table that can be read"),
        ("t.csv", b"a,y\n1,0,2\n", "", "is not a table that can be read"),
        ("t.csv", b"a,y\n\xff\xfe,0\n", "", "not of numbers"),
        ("t.csv", b"\xff\xfea\0,y\n1,0\n", "", "t.csv"),
        ("t.csv", b"a,y\n1," + b"x" * 3_000_000 + b"\n", ",classes=imagenet", "has the class 'xxx.*…', which is not"),
        ("t.parquet", b"PAR1 no PAR1", "", "is not a table that can be read"),
    ],
)
def test_tables_that_are_refused(tmp_path, name, content, option, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        data.load(f"{tmp_path / name}{option}")
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_a_parquet_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = table(tmp_path / "t.parquet", {"a": [0.0] * 100_000, "y": [0] * 100_000})
    assert len(data.load(path)) == 100_000
    monkeypatch.setattr("smoothcert.data.table.unpacked_limit", lambda packed: 10 * packed)
    with pytest.raises(DataError, match="it claims 100000 rows"):
        data.load(path)


def test_a_table_can_be_certified(tmp_path):
    dataset = data.load(table(tmp_path / "t.csv", {"a": [-30.0, 40.0], "b": [0.0, 0.0], "y": [0, 1]}))
    smoothed = Smoothed(lambda x: torch.stack([-x[:, 0], x[:, 0]], 1), Gaussian(1.0), input_range=dataset.input_range)
    run = certify_dataset(smoothed, dataset, Cohen(n=200), run=tmp_path / "run", progress=False, seed=0)
    assert [row["predict"] for row in run.rows()] == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("photo.jpg", "photo.jpg is a single image; put it into a folder with labels.csv"),
        ("notes.txt", "notes.txt is not a dataset; give an .npz, .csv or .parquet file"),
        ("digits,size=3", "unknown option of this data 'size'"),
        ("digits/3", "unknown dataset 'digits/3'"),
        ("imagenet/3", "imagenet has no parts"),
        ("photo.jpg,size=3,size=4", "gives size twice"),
        (",size=3", "names nothing"),
        ("nothing.here:make", "cannot be imported"),
    ],
)
def test_what_is_not_a_dataset(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "photo.jpg")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=message):
        data.load(text)


CODE = """
import numpy as np
import torch
from PIL import Image


class Pictures:
    classes = ["cat", "dog"]

    def __init__(self, split="train", count=2, grey=False):
        self.split, self.count, self.grey = split, count, grey

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return Image.new("L" if self.grey else "RGB", (5, 4), 51 if self.grey else (255, 0, 51)), index % 2


class Plain:
    def __init__(self, num_classes=3):
        self.num_classes = num_classes

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.full((2,), index / 4, np.float32), index


def pairs():
    return [(torch.zeros(3), 0), (torch.ones(3), 1)]


def nothing():
    return 3


def triples():
    return [(torch.zeros(3), 0, 1)]


held = pairs()
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / f"own_{tmp_path.name.replace('-', '_')}.py"  # a module of another name for each test
    path.write_text(CODE)
    return path


def test_datasets_of_own_code(code):
    dataset = data.load(f"{code}:Pictures,count=4", split="val")
    assert (dataset.split, len(dataset), dataset.class_names, dataset.levels) == ("val", 4, ("cat", "dog"), 255)
    assert dataset._made.split == "val"
    assert dataset.shape == (3, 4, 5)
    assert dataset[1][0][:, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    assert data.load(f"{code}:Pictures,grey=true").shape == (1, 4, 5)
    plain = data.load(f"{code}:Plain,num_classes=5")
    assert (plain.num_classes, plain.shape, plain.levels, plain.name) == (5, (2,), None, "Plain")
    assert data.load(f"{code}:pairs,num_classes=2").num_classes == 2
    assert len(data.load(f"{code}:held,num_classes=2")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pairs", "does not tell the number of its classes; add num_classes=N"),
        ("nothing", "returned a int, not a dataset"),
        ("triples,num_classes=2", "not an .input, label. pair"),
        ("Pictures,color=1", "cannot be called with these options"),
        ("Pictures,num_classes=3", "num_classes 3 and 2 names"),
        ("Pictures,count=0", "empty dataset"),
        ("held,count=3", "takes no count"),
        ("absent", "has no absent"),
    ],
)
def test_own_code_that_is_refused(code, text, message):
    with pytest.raises(UsageError, match=message):
        data.load(f"{code}:{text}")


def test_labels_of_own_code_are_checked(code):
    with pytest.raises(UsageError, match="input 2 of Plain has label 2, but classes are 0 to 1"):
        data.load(f"{code}:Plain,num_classes=2")[2]


def test_images_of_pillow_can_be_certified(tmp_path):
    pictures = [(Image.new("RGB", (3, 3), (255, 255, 255)), 1), (Image.new("L", (3, 3), 0).convert("RGB"), 0)]

    def bright(x):
        score = x.mean(dim=(1, 2, 3)) - 0.5
        return torch.stack([-score, score], 1)

    run = certify_dataset(
        Smoothed(bright, Gaussian(0.25)), pictures, Cohen(n=200), run=tmp_path / "run", progress=False, seed=0
    )
    assert [row["predict"] for row in run.rows()] == [1, 0]


class Has:
    """A dataset as far as its classes matter."""

    def __init__(self, names, by_name=False, complete=False):
        self.class_names, self.num_classes = tuple(names), len(names)
        self.by_name, self.complete, self.numbered = by_name, complete, None

    def use_classes(self, listed):
        self.numbered = [listed.number(name) for name in self.class_names]


@pytest.mark.parametrize(
    ("dataset", "count", "names", "advice"),
    [
        (Has("012"), 3, None, None),
        (Has("012"), 5, None, None),  # explicit numbers; some classes may be missing
        (Has("012"), 5, [*NAMES, "x"], None),  # numbers are not names
        (Has("0123"), 3, None, "use a dataset"),
        (Has("0123", complete=True), 5, None, "use a dataset"),
        (Has(NAMES), 4, NAMES, None),
        (Has(["Air-Plane", "BIRD", "cat, felis", "dog"]), 4, NAMES, None),
        (Has(NAMES[::-1]), 4, NAMES, "their names differ"),
        (Has([*NAMES[:3], "wolf"]), 4, NAMES, "their names differ"),
        (Has(["n01440764", "n01443537"]), 2, ["tench", "goldfish"], None),
        (Has(NAMES[:2], by_name=True), 4, None, "list the classes of the model in order"),
        (Has(["dog", "wolf"], by_name=True), 4, NAMES, "list the classes of the model in order"),
        (Has(["w", "x", "y", "z"], by_name=True), 4, NAMES, "their names differ"),
        (Has(["w", "x", "y", "z"], by_name=True), 4, None, None),
        (Has(imagenet_classes().names), 1000, [f"{name}, x" for name in imagenet_classes().names], None),
        (Has(imagenet_classes().names), 1000, imagenet_classes().names[::-1], "their names differ"),
    ],
)
def test_the_classes_of_model_and_dataset_are_compared(dataset, count, names, advice):
    said = mismatch(dataset, count, names)
    assert said is None if advice is None else said is not None and advice in said
    assert dataset.numbered is None


def test_a_folder_is_numbered_as_the_model(tmp_path):
    dataset = data.load(folders(tmp_path, "Dog", "bird"))
    foggy = data.Corrupted(dataset, "fog", 1)
    assert mismatch(foggy, 4, NAMES) is None
    assert labels(dataset) == labels(foggy) == [3, 1]
    assert foggy.num_classes == 4


def test_lists_find_names():
    listed = ClassList([["-1"], ["1"], ["a, b"], ["b, c"]], "x")
    assert [listed.number(name) for name in ("-1", "1", "A", "c", "z")] == [0, 1, 2, 3, None]
    with pytest.raises(DataError, match="several classes named 'b'"):
        listed.number("b")
    assert read_classes("imagenet").names[:2] == ("tench", "goldfish")
