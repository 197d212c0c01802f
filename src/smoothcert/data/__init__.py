"""Datasets by name, file, folder or code of the user; see :func:`load` and :func:`fetch`."""

from smoothcert.data.base import ArrayDataset, Dataset
from smoothcert.data.classes import ClassList, mismatch, read_classes
from smoothcert.data.corruptions import CORRUPTIONS, Corrupted
from smoothcert.data.download import fetch
from smoothcert.data.folder import ImageFolder
from smoothcert.data.images import Images
from smoothcert.data.loading import available, load
from smoothcert.data.registry import DATASETS, IDENTITY, LOADERS, DatasetInfo, RemoteFile, default_root
from smoothcert.data.suites import SuiteSet, load_suite

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "IDENTITY",
    "LOADERS",
    "ArrayDataset",
    "ClassList",
    "Corrupted",
    "Dataset",
    "DatasetInfo",
    "ImageFolder",
    "Images",
    "RemoteFile",
    "SuiteSet",
    "available",
    "default_root",
    "fetch",
    "load",
    "load_suite",
    "mismatch",
    "read_classes",
]
