"""Run a function in several processes that form a group of torch.distributed, over Gloo."""

import multiprocessing
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# A server imports torch once, and makes each process in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["bitbayes.merging", "hypothesis", "scipy.integrate"])
TIMEOUT = 60


def run(size, function, *args, timeout=TIMEOUT):
    """What function(rank, size, *args) returns in each of `size` processes; an exception is raised here."""
    answers = run_all(size, function, *args, timeout=timeout)
    for answer in answers:
        if isinstance(answer, Failure):
            raise AssertionError(answer.trace)
    return answers


def run_all(size, function, *args, timeout=TIMEOUT):
    """The same, with a `Failure` in the place of what was not returned; None for a process that has died."""
    with tempfile.TemporaryDirectory() as folder:
        store, results = f"file://{folder}/store", Path(folder)
        workers = [
            CONTEXT.Process(target=_work, args=(rank, size, store, results, timeout, function, args))
            for rank in range(size)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(2 * TIMEOUT)
            if worker.is_alive():
                worker.kill()
                worker.join()
        files = [results / f"{rank}.pt" for rank in range(size)]
        return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


class Failure:
    def __init__(self, error):
        self.kind, self.message, self.trace = type(error).__name__, str(error), traceback.format_exc()


def _work(rank, size, store, results, timeout, function, args):
    torch.set_num_threads(1)
    if size > 1:
        limit = timedelta(seconds=timeout)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=limit)
    try:
        answer = function(rank, size, *args)
    except Exception as error:
        answer = Failure(error)
    part = results / f"{rank}.part"
    torch.save(answer, part)
    part.rename(results / f"{rank}.pt")
    if size > 1:
        dist.destroy_process_group()
