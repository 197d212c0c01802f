"""Evaluation of datasets: certification and vote counting, in this process, in shards, or on a Ray cluster."""

from smoothcert.evaluate.certification import certify_dataset
from smoothcert.evaluate.cluster import Cluster
from smoothcert.evaluate.recertification import recertify
from smoothcert.evaluate.votes import clean_decisions, count_votes

__all__ = ["Cluster", "certify_dataset", "clean_decisions", "count_votes", "recertify"]
