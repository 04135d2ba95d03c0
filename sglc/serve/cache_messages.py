"""What the runtime's cache stores and removes, as batches of the scheduler protocol's `SubscribeKvEvents`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from smg_grpc_proto.generated import common_pb2 as pb

_BLOCKS = 4_096  # of a batch: gRPC's clients take messages of 4 MiB


def kv_batches(changes: Sequence[Sequence[Any]], page_size: int, number: int) -> Iterator[Any]:
    """The changes of a cache (`RadixTree.follow`) as batches, the first of which has this `number`.

    Where everything is told anew, they are the chunks of a snapshot.
    """
    whole = len(changes[0]) == 0
    parts = [changes[at : at + _BLOCKS] for at in range(0, len(changes), _BLOCKS)]
    for index, part in enumerate(parts):
        batch = pb.KvEventBatch(sequence_number=number + index, timestamp=time.time(), dp_rank=0)
        if whole:
            blocks = sum(len(change) == 4 for change in changes)
            batch.snapshot.CopyFrom(pb.KvSnapshotChunk(index=index, count=len(parts), blocks=blocks))
        for place, event in enumerate(_events(part, page_size)):
            event.event_id = 0 if whole else (number + index) * _BLOCKS + place
            batch.events.append(event)
        yield batch


def _events(changes: Sequence[Sequence[Any]], page_size: int) -> Iterator[Any]:
    """One event for pages that stand behind each other, and for those that go one after the other."""
    event, last = pb.KvCacheEvent(), 0
    for change in changes:
        kind = ("cleared", "removed", "", "", "stored")[len(change)]
        behind = kind == "removed" or (kind == "stored" and change[1] == last != 0)
        if not behind or event.WhichOneof("data") != kind:
            if event.WhichOneof("data") is not None:
                yield event
            event = pb.KvCacheEvent()
        match change:
            case []:
                event.cleared.SetInParent()
            case [block]:
                event.removed.block_hashes.append(block)
                event.removed.tier = pb.KV_CACHE_TIER_DEVICE
            case [block, parent, ids, namespace]:
                stored, last = event.stored, block
                if not stored.blocks:
                    stored.tier = pb.KV_CACHE_TIER_DEVICE
                    if parent:
                        stored.parent_block_hash = parent
                    if namespace:
                        stored.cache_salt = namespace
                stored.blocks.add(block_hash=block, token_ids=ids, block_size=page_size, cache_level=0)
    yield event
