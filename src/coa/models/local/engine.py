"""Continuous batching: rows leave the batch at a stop string, keep their KV, and come back with their observation.

A run of agents calls the model many times, and each call continues the text of the call before it. A row is one such
text with its keys and values (KV) in a slot. While a tool works, its row rests: it keeps its slot, but takes no part in
forward passes. The next call of the run finds the row by its ids and computes only the observation. A request that
shares a prefix with any row, such as the prompt of a group, copies the KV of that prefix. So no context is computed
twice. Each pass takes one token of every decoding row and up to `CHUNK_TOKENS` of new text. Rows that finish are
replaced at once. Memory for KV is bounded: when it runs short, the row that has rested longest is forgotten.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from transformers import PreTrainedModel

from coa.models.base import Finish
from coa.models.local.lean import Lean
from coa.models.local.lockstep import Lockstep
from coa.models.local.masks import Masks
from coa.models.local.request import Decoded, Request
from coa.models.local.sampling import choose
from coa.models.local.slots import NAME, Chunk, EngineStep, Slots, length_class
from coa.models.local.threads import use_cores
from coa.trajectory import Tokenizer
from coa.trajectory.grammar.language import DONE

log = logging.getLogger(__name__)
CHUNK_TOKENS: Final = 256
"""Most tokens of new text in one pass, beside the tokens of the decoding rows."""
LENGTH_STEP: Final = 256
_TAIL_TOKENS: Final = 48
"""Number of last tokens that are searched for a stop string."""
_GRACE: Final = 8
"""Number of passes for which a resting row is kept while new requests wait for a slot."""
_SHARED: Final = 16
"""A shared prefix shorter than this is not worth copying."""


@dataclass(eq=False)
class Row:
    """A sequence with KV in a slot. It is busy with a request, or it rests."""

    slot: int
    ids: list[int]
    computed: int = 0
    request: Request | None = None
    started: int = 0
    """Index of the first sampled token."""
    recomputed: int = 0
    logprobs: list[float] = field(default_factory=list)
    place: int | None = None
    """State of the request's grammar; None without a grammar."""
    log_kept: float = 0.0
    used: int = 0
    """Pass in which it was last busy, for choosing the row to forget."""
    over: bool = False
    """Whether its turn has ended, so that no request is likely to continue it."""

    @property
    def due(self) -> int:
        return len(self.ids) - self.computed


class Engine:
    """Runs in its own thread; `submit` may be called from any thread."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: Tokenizer, *, max_rows: int = 32, kv_bytes: int = 2 << 30,
        longest_bytes: int | None = None, threads: int | None = None, idle_s: float = 120.0, lean: Lean | None = None,
        temperature: float = 1.0, kv_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """`longest_bytes` is the KV memory that a single row may use if that is more than its share. `threads` is the
        number of cores to use; None means all. `idle_s` is the time without requests after which resting rows are
        forgotten. `lean` replaces the forward pass of the model. `temperature` is that of `LocalModel`. `kv_dtype` is
        the type of keys and values if it is not that of the weights."""
        model.train(False)
        model.set_attn_implementation(NAME)
        self._decoder = model.get_decoder()  # type: ignore[no-untyped-call]
        self._head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._device = next(model.parameters()).device
        self._lean = lean
        self._temperature = temperature
        self._tokenizer = tokenizer
        self._ends = _ends(model, tokenizer)
        self._max_rows = max_rows
        self._kv_bytes = kv_bytes
        self._longest_bytes = longest_bytes or kv_bytes
        self._threads = threads
        self._idle_s = idle_s
        self._slots = Slots(model, count=max_rows, length=LENGTH_STEP, dtype=kv_dtype)
        self._masks: Masks | None = None
        self._rows: list[Row] = []
        self._waiting: list[Request] = []
        self._inbox: queue.SimpleQueue[Request | Callable[[], None] | None] = queue.SimpleQueue()
        self._lockstep: Lockstep | None = None
        self._clock = 0
        self.tokens_written = 0
        """Tokens sampled so far, in all requests."""
        self._closed = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name="coa-engine", daemon=True)
        started = torch.get_num_threads()
        self._thread.start()
        self._ready.wait()
        torch.set_num_threads(started)  # the number that the engine's thread chose is not for later threads

    @cached_property
    def spellings(self) -> Sequence[bytes | None] | None:
        """The bytes of each token; None if they are not known, so that no grammar can be followed."""
        spellings = getattr(self._tokenizer, "spellings", None)
        return spellings() if spellings is not None else None

    @property
    def longest(self) -> int:
        """Largest number of tokens of one row."""
        return self._longest_bytes // self._slots.bytes_per_token

    @property
    def load(self) -> int:
        """Number of requests that are not answered yet."""
        return len(self._waiting) + self._inbox.qsize() + sum(row.request is not None for row in list(self._rows))

    def remembers(self, ids: Sequence[int]) -> bool:
        """Whether these ids continue a resting row. Other threads ask, so the answer may be outdated; it is a hint."""
        rows = [(row.ids, row.computed) for row in list(self._rows) if row.request is None]
        return any(0 < computed < len(ids) and known[:computed] == ids[:computed] for known, computed in rows)

    def submit(self, request: Request) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        self._inbox.put(request)

    def forget(self) -> None:
        """Call this when the weights have changed, and only between requests: the KV of all rows is outdated. Its
        memory is freed until it is needed again."""
        self._do(self._forget_all)

    def keep_step(self, lockstep: Lockstep | None) -> None:
        """Take requests in the order of `lockstep`, or with None as they come. Call this only between requests."""
        self._do(lambda: setattr(self, "_lockstep", lockstep))

    def leave(self, run: int) -> None:
        """A run in lockstep is over."""
        self._do(lambda: self._lockstep.leave(run) if self._lockstep else None)

    def _do(self, action: Callable[[], None]) -> None:
        """Run an action in the engine's thread, after everything that was submitted before."""
        if not self._closed:
            self._inbox.put(action)

    def close(self) -> None:
        self._closed = True
        self._inbox.put(None)
        self._thread.join(timeout=60)

    # ---- the thread

    def _work(self) -> None:
        try:
            try:
                if self._threads is not None:
                    use_cores(self._threads)
            finally:
                self._ready.set()
            with torch.inference_mode():
                while self._take_requests():
                    self._drop_cancelled()
                    self._admit()
                    if any(row.request for row in self._rows):
                        self._step()
        except Exception as error:
            log.exception("the engine broke")
            self._closed = True
            self._fail_all(error)

    def _take_requests(self) -> bool:
        """Returns False at the end. Waits if there is nothing to do, or if a run in lockstep is due."""
        while self._must_wait() or not self._inbox.empty():
            try:
                item = self._inbox.get(timeout=self._idle_s if self._lockstep is None else None)
            except queue.Empty:
                self._forget()
                item = self._inbox.get()
            if item is None:
                self._fail_all(RuntimeError("the engine was closed"))
                return False
            if not isinstance(item, Request):
                item()
            elif self._lockstep is not None:
                self._lockstep.arrive(item)
            else:
                self._waiting.append(item)
        if self._lockstep is not None:
            self._waiting += self._lockstep.admitted(self._clock)
        return True

    def _must_wait(self) -> bool:
        idle = not self._waiting and not any(row.request for row in self._rows)
        if self._lockstep is None:
            return idle
        first = self._lockstep.first_due()
        if idle and first is not None:
            self._clock = max(self._clock, first)
        return (idle and first is None) or not self._lockstep.complete(self._clock)

    def _fail_all(self, error: Exception) -> None:
        held = self._lockstep.held if self._lockstep is not None else []
        for request in [*self._waiting, *held, *(row.request for row in self._rows if row.request)]:
            request.done(error)
        self._waiting, self._rows = [], []
        while not self._inbox.empty():
            late = self._inbox.get()
            if isinstance(late, Request):
                late.done(error)

    def _drop_cancelled(self) -> None:
        for request in self._waiting:
            if request.cancelled and self._lockstep is not None:
                self._lockstep.went(request, self._clock)
        self._waiting = [request for request in self._waiting if not request.cancelled]
        for row in self._rows:
            if row.request and row.request.cancelled:
                if self._lockstep is not None:
                    self._lockstep.went(row.request, self._clock)
                row.request = None
                del row.ids[row.computed :]

    # ---- rows come and go

    def _admit(self) -> None:
        postponed = []
        for request in self._waiting:
            busy = sum(row.request is not None for row in self._rows)
            if busy >= self._max_rows or not self._place(request):
                postponed.append(request)
        self._waiting = postponed

    def _place(self, request: Request) -> bool:
        """Give the request a row. Returns False if it has to wait."""
        if not request.ids or len(request.ids) + request.sampling.max_tokens > self.longest:
            message = f"{len(request.ids)} tokens and their continuation do not fit into {self.longest} tokens"
            request.done(ValueError(message))
            return True
        known = len(request.ids) - 1  # the last token is always computed, because its logits are needed
        best, shared = None, 0
        for row in self._rows:
            common = _common(row.ids[: row.computed], request.ids[:known])
            if row.request is None and common == row.computed and common >= max(shared, 1):
                best, shared = row, common
                continue
            if common > shared:
                best, shared = row, common
            # That row is computing the prefix that this request shares with it: wait, then copy.
            if row.request and row.due > 1 and _common(row.ids, request.ids[:known]) >= max(shared, _SHARED) + _SHARED:
                return False
        if best is not None and best.request is None and shared == best.computed:
            row = best
        else:
            free = self._free_slot()
            if free is None:
                return False
            row = Row(free, [])
            if best is not None and shared >= _SHARED and best in self._rows:
                self._slots.copy(best.slot, free, shared)
                row.computed = shared
            self._rows.append(row)
        row.ids, row.request = list(request.ids), request
        row.started, row.logprobs, row.recomputed = len(request.ids), [], len(request.ids) - row.computed
        row.place, row.log_kept = request.grammar.start if request.grammar else None, 0.0
        return True

    def _free_slot(self) -> int | None:
        taken = {row.slot for row in self._rows}
        free = next((slot for slot in range(self._slots.count) if slot not in taken), None)
        if free is not None:
            return free
        resting = [row for row in self._rows if row.request is None]
        if any(row.request for row in self._rows):
            # Other rows are busy, so the request can wait: keep rows that may soon be back from their tool.
            resting = [row for row in resting if row.over or self._clock - row.used >= _GRACE]
        if not resting:
            return None
        forgotten = min(resting, key=lambda row: row.used)
        self._rows.remove(forgotten)
        return forgotten.slot

    def _fit(self) -> None:
        """Make the slots long enough for the next pass, and forget resting rows if memory is short."""
        need = max(len(row.ids) for row in self._rows if row.request)
        if need <= self._slots.length:
            return
        length = -(-need // LENGTH_STEP) * LENGTH_STEP
        count = max(min(self._max_rows, self._kv_bytes // (length * self._slots.bytes_per_token)), 1)
        ranked = sorted(self._rows, key=lambda row: (row.request is None, -row.used))
        for row in ranked[count:]:
            if row.request is not None:  # there is no room for it beside the others: it starts again later
                row.request.begin_again()
                self._waiting.append(row.request)
        self._rows = ranked[:count]
        kept = [(row.slot, row.computed) for row in self._rows]
        self._slots.resize(count=count, length=length, keep=kept)
        for slot, row in enumerate(self._rows):
            row.slot = slot

    def _forget(self) -> None:
        """There was no request for a long time: free the memory of long rows."""
        if self._slots.length > LENGTH_STEP:
            self._rows = []
            self._slots.resize(count=self._max_rows, length=LENGTH_STEP, keep=[])

    def _forget_all(self) -> None:
        self._drop_cancelled()
        self._rows = [row for row in self._rows if row.request]
        if not self._rows:
            self._slots.resize(count=self._max_rows, length=1, keep=[])

    # ---- one forward pass

    def _step(self) -> None:
        self._clock += 1
        self._fit()
        busy = [row for row in self._rows if row.request]
        decoding = [row for row in busy if row.due == 1]
        self._gather(decoding)
        decoding.sort(key=lambda row: row.slot)
        chunks: list[Chunk] = []
        reading: list[tuple[Row, int]] = []
        tokens = [row.ids[-1] for row in decoding]
        positions = [row.computed for row in decoding]
        room = CHUNK_TOKENS
        for row in busy:
            if row.due > 1 and room > 0:
                size = min(row.due, room)
                chunks.append(Chunk(row.slot, row.computed, len(tokens), len(tokens) + size))
                tokens += row.ids[row.computed : row.computed + size]
                positions += range(row.computed, row.computed + size)
                reading.append((row, size))
                room -= size
        place = torch.tensor(positions, device=self._device)
        step = EngineStep(self._slots, place[: len(decoding)], chunks)
        hidden = self._forward(torch.tensor(tokens, device=self._device), place, step)
        ready, at = list(decoding), list(range(len(decoding)))
        for row in decoding:
            row.computed += 1
        for (row, size), chunk in zip(reading, chunks, strict=True):
            row.computed += size
            if row.due == 0:
                ready.append(row)
                at.append(chunk.last - 1)
        if ready:
            last = hidden[torch.tensor(at, device=self._device)]
            logits = self._head(last) if self._lean is None else self._lean.logits(last)
            self._extend(ready, logits if self._temperature == 1 else logits / self._temperature)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, step: EngineStep) -> torch.Tensor:
        """Last hidden states, [tokens, width]."""
        if self._lean is not None:
            return self._lean.hidden(ids, positions, step)
        out = self._decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False, coa_step=step)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def _gather(self, decoding: Sequence[Row]) -> None:
        """Move the decoding rows to the slots 0 to n-1, so that their KV is one block, with rows of like length next to
        each other. Rows that are in a suitable slot stay there."""
        holders = {row.slot: row for row in self._rows}
        kinds = {row: length_class(row.computed + 1) for row in decoding}
        wanted = sorted(kinds.values())
        settled = {row for row, kind in kinds.items() if row.slot < len(wanted) and wanted[row.slot] == kind}
        moving: dict[int, list[Row]] = defaultdict(list)
        for row, kind in kinds.items():
            if row not in settled:
                moving[kind].append(row)
        for slot, kind in enumerate(wanted):
            holder = holders.pop(slot, None)
            if holder in settled:
                continue
            row = moving[kind].pop()
            if row.slot == slot:  # a row that was moved before has left it this place
                continue
            del holders[row.slot]
            if holder is None:
                self._slots.copy(row.slot, slot, row.computed)
            else:
                self._slots.swap(row.slot, slot, max(row.computed, holder.computed))
                holder.slot, holders[row.slot] = row.slot, holder
            row.slot = slot

    def _extend(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        requests = [row.request for row in rows]
        settings = [request.sampling for request in requests if request]
        draws = [request.random.random() for request in requests if request]
        tokens, logprobs, kept = choose(logits, settings, draws, self._allowed(rows, logits.shape[-1]))
        self.tokens_written += len(tokens)
        for row, token, logprob, mass in zip(rows, tokens, logprobs, kept, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.log_kept += mass
            row.used = self._clock
            if row.place is not None and row.request is not None and row.request.grammar is not None:
                assert self._masks is not None
                row.place = self._masks.after(row.request.grammar.language, row.place, token)
            self._finish_if_done(row, token)

    def _allowed(self, rows: Sequence[Row], width: int) -> torch.Tensor | None:
        """[rows, vocabulary]: the tokens that each row's grammar and token limit allow; None if all are allowed."""
        if all(row.place is None for row in rows):
            return None
        if self._masks is None:
            self._masks = Masks(self.spellings or (), width, self._device)
        allowed = torch.ones((len(rows), width), dtype=torch.bool, device=self._device)
        for at, row in enumerate(rows):
            if row.place is None or row.request is None or row.request.grammar is None:
                continue
            left = row.request.sampling.max_tokens - (len(row.ids) - row.started)
            if not self._masks.allow(row.request.grammar.language, row.place, left, allowed[at]):
                row.place = None
        return allowed

    def _finish_if_done(self, row: Row, token: int) -> None:
        request = row.request
        assert request is not None
        sampled = row.ids[row.started :]
        finish = None
        if token in self._ends:
            finish = Finish.END
        else:
            tail = self._tokenizer.decode(sampled[-_TAIL_TOKENS:])
            if row.place == DONE or any(word in tail for word in request.stop):
                finish = Finish.STOP
            elif len(sampled) >= request.sampling.max_tokens:
                finish = Finish.LENGTH
        if request.on_text is not None:
            request.on_text(self._tokenizer.decode(sampled[:-1] if finish is Finish.END else sampled))
        if finish is None:
            return
        row.request, row.over = None, finish is Finish.END
        if self._lockstep is not None:
            self._lockstep.went(request, self._clock)
        logprobs, ended = row.logprobs, None
        if finish is Finish.END:  # the token that ends the turn is not part of the text
            ended = (token, logprobs[-1])
            sampled, logprobs = sampled[:-1], logprobs[:-1]
            row.ids.pop()
            row.computed = min(row.computed, len(row.ids))
        log_kept = None if row.place is None else row.log_kept
        request.done(Decoded(sampled, logprobs, finish, row.recomputed, log_kept, ended))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix, by bisection: comparing whole slices is fast."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle
    return low


def _ends(model: PreTrainedModel, tokenizer: Tokenizer) -> frozenset[int]:
    configured = model.generation_config.eos_token_id if model.generation_config else None
    listed = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in [*listed, tokenizer.end_of_turn] if token is not None)
