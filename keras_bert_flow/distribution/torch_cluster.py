"""Distributed training on PyTorch with `torchrun`: one device per process.

Each process has its own rows and losses, reweighted by the weights of all processes (`data.pretraining`). The
gradients are averaged before they reach the optimizer.
"""

import os
import re
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as group
from torch.distributed.rendezvous import rendezvous

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.data.pretraining import split_batches
from keras_bert_flow.distribution.cluster import JOIN_SECONDS, Cluster, replica_seed, seed_variables
from keras_bert_flow.models.defaults import token_loss

# What the collective operations of gloo and NCCL raise, as RuntimeError
_LOSS = re.compile(r"gloo|nccl|connection (?:closed|reset|refused)|broken pipe|timed? ?out", re.IGNORECASE)


class TorchCluster(Cluster):
    """The processes of `torchrun`, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        accumulate_batches: parts that this process splits its rows of a batch into, for an optimizer that accumulates.
    """

    computes_apart = True
    make_loss = staticmethod(partial(token_loss, is_sum=True))
    losing_errors = {group.DistError: re.compile(""), RuntimeError: _LOSS}

    def __init__(self, accumulate_batches: int = 1):
        kind = "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
            kind = "cpu:gloo,cuda:nccl"
        store, self.rank, self.processes = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
        if store.add(f"keras_bert_flow/rank/{self.rank}", 1) > 1:
            raise ValueError(
                f"Each process of a run must have a rank of its own. Received: RANK={self.rank} in two processes. "
                f"Start one for each of 0 to {self.processes - 1}."
            )
        group.init_process_group(kind, store=store, rank=self.rank, world_size=self.processes)
        self.devices = self.processes
        self._parts = accumulate_batches

    def prepare(self, model):
        """Average gradients over the processes before the optimizer applies them, all in one message."""
        apply = model.optimizer.apply

        @torch.no_grad()
        def apply_mean(grads, trainable_variables=None):
            flat = torch.cat([gradient.reshape(-1) for gradient in grads])
            group.all_reduce(flat)
            flat /= group.get_world_size()
            parts = flat.split([gradient.numel() for gradient in grads])
            means = [part.view_as(gradient) for part, gradient in zip(parts, grads, strict=True)]
            return apply(means, trainable_variables)

        model.optimizer.apply = apply_mean

    def spread_seeds(self, model):
        for variable in seed_variables(model):
            variable.assign(replica_seed(read_variable(variable), self.rank))

    def feed(self, model, dataset):
        return split_batches(dataset, self._parts, self.processes, lambda total: float(self.sum(np.array([total]))[0]))

    def merge_metrics(self, model):
        for variable in model.metrics_variables:
            group.all_reduce(variable.value.data)

    def is_everywhere(self, condition):
        number = condition.to(torch.int32)
        group.all_reduce(number, group.ReduceOp.MIN)
        return number.bool()

    def sum(self, values):
        parts = [torch.empty(values.shape, dtype=torch.float64) for _ in range(self.processes)]
        group.all_gather(parts, torch.from_numpy(np.ascontiguousarray(values)))
        return np.sum([part.numpy() for part in parts], axis=0)

    def close(self):
        group.destroy_process_group()
