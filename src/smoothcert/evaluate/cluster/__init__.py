"""Evaluation on a Ray cluster: the connection, the pool of workers, and ensembles shared between workers."""

from smoothcert.evaluate.cluster.connection import KEEPALIVE, LOCAL, Cluster
from smoothcert.evaluate.cluster.ensemble import distributed_ensemble, require_members
from smoothcert.evaluate.cluster.pool import WorkerPool, worker_pool

__all__ = ["KEEPALIVE", "LOCAL", "Cluster", "WorkerPool", "distributed_ensemble", "require_members", "worker_pool"]
