"""`SubscribeKvEvents`: who replays the events of the cache knows what the server has."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct
from smg_grpc_proto.generated import common_pb2

from tests.depth import at_depth
from tests.hostile_plans import valid
from tests.serving import serving
from tests.test_grpc import STATUS, Client, connected
from tests.test_serve_programs import asking
from tests.waiting import until

pytestmark = pytest.mark.slow  # servers

PAGE = 16


class Subscriber:
    """A subscription that is read in a thread of its own, and what it has told of."""

    def __init__(self, client: Client, start: int = 0) -> None:
        self.blocks: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.salts: dict[int, str] = {}  # also of blocks that are gone
        self.numbers: list[int] = []
        self.snapshots = self.removed = 0
        self.error: grpc.RpcError | None = None
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=start)
        self.call = client.stub.SubscribeKvEvents(request)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self.call:
                self.numbers.append(batch.sequence_number)
                self.snapshots += batch.HasField("snapshot") and batch.snapshot.index == 0
                for event in batch.events:
                    self._take(event)
        except grpc.RpcError as error:
            self.error = error

    def _take(self, event: Any) -> None:
        match event.WhichOneof("data"):
            case "cleared":
                self.blocks.clear()
            case "stored":
                parent = event.stored.parent_block_hash
                salt = event.stored.cache_salt
                assert event.stored.HasField("parent_block_hash") == bool(parent)
                for block in event.stored.blocks:
                    assert block.block_size == len(block.token_ids)
                    assert not parent or parent in self.blocks
                    assert not parent or self.salts[parent] == salt
                    self.blocks[block.block_hash] = parent, tuple(block.token_ids)
                    self.salts[block.block_hash] = salt
                    parent = block.block_hash
            case "removed":
                for block in event.removed.block_hashes:
                    del self.blocks[block]
                    self.removed += 1

    def ids_of(self, block: int) -> tuple[int, ...]:
        parent, ids = self.blocks[block]
        return (*(self.ids_of(parent) if parent else ()), *ids)

    def known(self) -> set[tuple[int, ...]]:
        return {self.ids_of(block) for block in tuple(self.blocks)}

    def end(self) -> None:
        self.call.cancel()
        self._thread.join()


@pytest.fixture(scope="module")
def small(small_model: Path) -> Iterator[Client]:
    """A server whose cache is soon full."""
    bounds = ("--kv-mib", str(at_depth(1, 1, 48)), "--max-len", "256", "--max-rows", "4")
    with (
        serving("--model", str(small_model), "--grpc-port", "0", *bounds) as server,
        connected(server) as client,
    ):
        yield client


def test_events_are_not_counted_beyond_what_a_number_holds(small: Client) -> None:
    subscriber = Subscriber(small, 2**64 - 1)
    until(lambda: subscriber.error is not None)
    assert subscriber.error is not None
    assert subscriber.error.code() == STATUS.INVALID_ARGUMENT


def test_events_add_up_to_what_is_cached(small: Client) -> None:
    rng, follower = random.Random(5), Subscriber(small)
    until(lambda: follower.numbers == [1])
    begins = [[rng.randrange(1_000, 40_000) for _ in range(3 * PAGE)] for _ in range(6)]
    for _ in range(60):
        ids = rng.choice(begins) + [rng.randrange(1_000, 40_000) for _ in range(rng.randrange(1, 11 * PAGE))]
        call = small.generate(ids, stream=True, max_new_tokens=rng.randrange(1, 20), ignore_eos=True)
        if rng.random() < 0.3:
            next(call)
            call.cancel()
        else:
            list(call)
    until(small.server.idle)
    late = Subscriber(small, start=17)
    until(lambda: bool(late.numbers))
    until(lambda: follower.known() == late.known())
    assert (follower.snapshots, late.snapshots) == (1, 1)
    assert follower.numbers == list(range(1, len(follower.numbers) + 1))
    assert late.numbers[0] == 17
    assert follower.removed > 0
    pages = {len(ids) for _, ids in follower.blocks.values()}
    assert pages == {small.server.info()["page_size"]}
    longest = max(follower.known(), key=len)
    (answer,) = small.generate([*longest, 7], max_new_tokens=1)
    assert answer.complete.cached_tokens == len(longest)
    for each in (follower, late):
        each.end()
        assert each.error is not None
        assert each.error.code() == STATUS.CANCELLED


def test_a_flush_is_told(small: Client) -> None:
    list(small.generate([*range(1_000, 1_100)]))
    follower = Subscriber(small)
    until(lambda: len(follower.blocks) > 3)
    assert small.stub.FlushCache(common_pb2.FlushCacheRequest()).success
    until(lambda: not follower.blocks)
    follower.end()


def test_two_salts_share_no_pages(small_model: Path) -> None:
    """By every way to the cache: ids, texts so long that the runtime remembers them, chats, and programs."""
    ids, text = [*range(1_000, 1_000 + 3 * PAGE)], "many words " * 110
    chat = {"messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 2, "temperature": 0}
    with serving("--model", str(small_model), "--grpc-port", "0") as server, connected(server) as client:
        follower = Subscriber(client)
        until(lambda: follower.numbers == [1])
        plan = {**valid()[0], "tokenizer": server.ask("GET", "/get_model_info")[1]["tokenizer_hash"]}
        del plan["hash"]

        def cached(prompt: dict[str, Any], salt: str, *, custom: bool = False) -> int:
            """Tokens of a prompt that were there."""
            own = {"custom_params": {"cache_salt": salt}} if custom else {"cache_salt": salt}
            sampling = {"max_new_tokens": 2, "temperature": 0}
            status, answer = server.ask("POST", "/generate", {**prompt, "sampling_params": sampling, **own})
            assert status == 200, answer
            return int(answer["meta_info"]["cached_tokens"])

        def over_grpc(salt: str) -> int:
            params = Struct()
            params.update({"cache_salt": salt})
            (answer,) = client.generate(ids, custom_params=params)
            return int(answer.complete.cached_tokens)

        def chatted(salt: str) -> int:
            status, answer = server.ask("POST", "/v1/chat/completions", {**chat, "cache_salt": salt})
            assert status == 200, answer
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        def ran(salt: str) -> int:
            """What the first of its generations finds."""
            body = {"plan": plan, "rows": [{"topic": "tea " * 40}], "seed": 1, "cache_salt": salt}
            status, events = asking(server, body)
            assert status == 200, events
            assert events[-1]["result"]["error"] is None
            return int(events[0]["answer"]["usage"]["cached"])

        for salt in ("", "ann", "7"):
            assert [
                cached({"input_ids": ids}, salt),
                cached({"text": text}, salt),
                chatted(salt),
                ran(salt),
            ] == [0] * 4
            assert cached({"input_ids": ids}, salt, custom=True) == over_grpc(salt) > 0
            for _ in range(3):
                assert min(cached({"text": text}, salt), chatted(salt), ran(salt)) > 0
        until(server.idle)
        late = Subscriber(client)
        until(lambda: bool(late.numbers))
        until(lambda: follower.known() == late.known())
        for one in (follower, late):
            of_salt = [[one.ids_of(block) for block in one.blocks if one.salts[block] == salt]
                       for salt in ("", "ann", "7")]  # fmt: skip
            assert {frozenset(each) for each in of_salt} == {frozenset(one.known())}
            assert sum(map(len, of_salt)) == len(one.blocks) == 3 * len(one.known())
            one.end()


def test_who_follows_is_an_admin_and_ends_with_the_server(small_model: Path) -> None:
    options = ("--grpc-port", "0", "--api-key", "one", "--admin-key", "two", "--request-timeout", "1")
    with serving("--model", str(small_model), *options) as server, connected(server) as client:
        request = common_pb2.SubscribeKvEventsRequest()
        for metadata, code in (((), STATUS.UNAUTHENTICATED),
                               ([("authorization", "Bearer one")], STATUS.PERMISSION_DENIED)):  # fmt: skip
            with pytest.raises(grpc.RpcError) as error:
                list(client.stub.SubscribeKvEvents(request, metadata=metadata))
            assert error.value.code() == code
        call = client.stub.SubscribeKvEvents(request, metadata=[("authorization", "Bearer two")])
        next(call)
        time.sleep(1.5)  # it has no time of its own
        list(client.generate([*range(1_000, 1_100)], metadata=[("authorization", "Bearer one")]))
        assert next(call).events
        server.process.terminate()
        assert list(call) == []
        server.process.wait()


def test_a_server_without_a_cache_says_so(tmp_path: Path) -> None:
    script = tmp_path / "answers.json"
    script.write_text("[]")
    with serving("--model", f"scripted:{script}", "--grpc-port", "0") as server, connected(server) as client:
        follower = Subscriber(client)
        until(lambda: follower.error is not None)
        assert follower.error is not None
        assert follower.error.code() == STATUS.UNIMPLEMENTED
