"""Replicas on the machines of a Ray cluster: an actor each, which Ray places, and starts anew when it dies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from sglc.cli.batch.listening import listens
from sglc.cli.batch.replica import LocalReplica, Lost, Made, Opened, Work
from sglc.cli.batch.sorted_rows import NumberedRow
from sglc.errors import UsageError
from sglc.observe.replay.tape import Tape

_LINGER_S = 0.005  # for more to hand over: that costs as much for one as for a hundred


def ray_replicas(
    address: str, work: Work, backends: Sequence[str | None], count: int | None
) -> list[RayReplica]:
    """Replicas on a cluster: one for each of several back ends, else `count`, else one for each GPU, or node.

    Args:
        address: `ray` is the cluster at `RAY_ADDRESS`, or that this machine is a part of, else one that begins
            here; `ray://HOST:PORT` is that of this head, whose nodes this machine is one of.

    Raises:
        UsageError: SGLC071 Ray is not here; SGLC086 there is no such cluster.
    """
    ray = _ray()
    _join(ray, os.environ.get("RAY_ADDRESS", "") if address == "ray" else address.removeprefix("ray://"))
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if len(backends) == 1:
        nodes = sum(node["Alive"] for node in ray.nodes())
        backends = [*backends] * (count or gpus or nodes)
    here = work.command is not None or (backends[0] or "local").startswith("local")
    actor = ray.remote(LocalReplica).options(
        max_restarts=-1, num_cpus=1, num_gpus=1 if gpus and here else 0, scheduling_strategy="SPREAD"
    )
    work = replace(work, linger_s=_LINGER_S)
    return [RayReplica(ray, actor.remote(work, one), number) for number, one in enumerate(backends)]


def _join(ray: Any, address: str) -> None:
    """Be a part of the cluster at an address, or of the one here: if there is none, one begins.

    Raises:
        UsageError: SGLC086, there is no such cluster.
    """
    how = {"log_to_driver": False, "logging_level": "ERROR"}
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        if parts.port and not listens(parts.hostname or "", parts.port):  # which Ray would try for minutes
            raise ConnectionError("nobody listens there")
        try:
            ray.init(address=address or "auto", **how)
        except ConnectionError:
            if address:
                raise
            ray.init(include_dashboard=False, **how)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise UsageError(
            "SGLC086", f"there is no Ray cluster at `{address}`: {str(error).strip().splitlines()[0]}",
            hint="start one with `ray start --head`, and name its address or `--cluster ray`",
        ) from None  # fmt: skip


def _ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's new way, which it warns about
    try:
        import ray
    except ImportError:
        raise UsageError(
            "SGLC071",
            "batches on several machines go over Ray, which is not here",
            hint="pip install 'sglc[ray]'",
        ) from None
    return ray


class RayReplica:
    """A `LocalReplica` in an actor."""

    def __init__(self, ray: Any, actor: Any, number: int) -> None:
        self.name = f"{number}"
        self._number = number
        self._ray, self._actor = ray, actor

    def open(self) -> Opened:
        """As of `Replica`."""
        opened: Opened = self._answer(self._actor.open.remote())
        self.name = f"{self._number} on {opened.host}"
        return opened

    def step(self, rows: Sequence[NumberedRow], known: Tape) -> Made:
        """As of `Replica`."""
        made: Made = self._answer(self._actor.step.remote(rows, known))
        return made

    def close(self) -> None:
        """As of `Replica`."""
        self._ray.kill(self._actor)

    def _answer(self, asked: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(asked)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise Lost(str(error).strip().splitlines()[0]) from None
