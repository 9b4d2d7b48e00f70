"""Constrained decoding compared with xgrammar and llguidance, on the shipped profiles and SmolLM2's vocabulary.

Every side follows the same tokens in the same process, in turns at each token. What is timed is the work of the decoder
for one row and token: the row of `allowed` that `sampling.choose` takes, and the step to the next state. Before that,
each side is asked to keep to a budget, with a model that takes any token that is allowed. The peers are installed into
build/grammar, without their dependencies, or found where $COA_BENCH_GRAMMAR says. `python -m benchmarks.grammar nano`
measures one profile.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.corpus import ordinary_runs
from benchmarks.grammar_lark import to_lark
from benchmarks.results import Figure, save
from coa.models.local.masks import Masks
from coa.models.tokenizer import load_tokenizer
from coa.trajectory import Profile, load_profile
from coa.trajectory.codec.writer import canonical
from coa.trajectory.grammar import Grammar, Move, language, to_gbnf
from coa.trajectory.grammar.language import DONE, FAR, Language
from coa.trajectory.profile import shipped

PEERS: Final = ("xgrammar==0.2.8", "llguidance==1.9.1", "apache-tvm-ffi==0.1.15.post2")
RANDOM_TOKENS: Final = 24
"""Tokens of a random path before it takes the shortest way to the end."""
BUDGET: Final = 48
PATIENCE: Final = 160
"""Tokens after which a step that goes beyond its budget is given up."""
BUDGET_PROFILE: Final = "nano"
COMPILE: Final = "compiling a profile, CPU time"
FIRST: Final = "a token, first time on its path, CPU time"
AGAIN: Final = "a token, second time on its path, CPU time"
UNITS: Final = {COMPILE: "s", FIRST: "µs", AGAIN: "µs"}


class Side(Protocol):
    name: str
    width: int

    def compile(self, profile: Profile, tags: Sequence[str], budget: int | None = None) -> object: ...

    def start(self, compiled: Any) -> Follower: ...


class Follower(Protocol):
    def fill(self, row: Tensor, left: int) -> None: ...

    def accept(self, token: int) -> bool:
        """Whether the step is complete."""
        ...


def _grammar(profile: Profile, tags: Sequence[str]) -> Grammar:
    grammar = language(profile).grammar([Move(tag) for tag in tags], ends_line=True)
    assert grammar is not None
    return grammar


class Ours:
    name = "ours"

    def __init__(self, spellings: Sequence[bytes | None]) -> None:
        self.spellings, self.width = spellings, len(spellings)
        self.masks = Masks(spellings, self.width, torch.device("cpu"))

    def compile(self, profile: Profile, tags: Sequence[str], budget: int | None = None) -> Grammar:
        grammar = Language(profile).grammar([Move(tag) for tag in tags], ends_line=True)
        assert grammar is not None
        return grammar

    def start(self, compiled: Grammar) -> OurFollower:
        return OurFollower(self.masks, compiled)


class OurFollower:
    def __init__(self, masks: Masks, grammar: Grammar) -> None:
        self.masks, self.language, self.state = masks, grammar.language, grammar.start

    def fill(self, row: Tensor, left: int) -> None:
        assert self.masks.allow(self.language, self.state, left, row)

    def accept(self, token: int) -> bool:
        self.state = self.masks.after(self.language, self.state, token)
        return self.state == DONE


class XGrammar:
    name = "xgrammar"

    def __init__(self, spellings: Sequence[bytes | None], end: int) -> None:
        import xgrammar

        self.module, self.width = xgrammar, len(spellings)
        self.compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(
                [spelled or b"" for spelled in spellings], vocab_size=self.width, stop_token_ids=[end]
            ),
            max_threads=1,
        )

    def compile(self, profile: Profile, tags: Sequence[str], budget: int | None = None) -> object:
        rules = to_gbnf(_grammar(profile, tags))
        if budget is not None:
            rules = rules.replace("root ::=", f"root[max_tokens={budget}] ::=", 1)
        return self.compiler.compile_grammar(self.module.Grammar.from_ebnf(rules))

    def start(self, compiled: object) -> XFollower:
        return XFollower(self.module.GrammarMatcher(compiled), self.width)


class XFollower:
    def __init__(self, matcher: Any, width: int) -> None:
        self.matcher, self.width = matcher, width
        self.bits = torch.full((1, (width + 31) // 32), -1, dtype=torch.int32)

    def fill(self, row: Tensor, left: int) -> None:
        self.matcher.fill_next_token_bitmask(self.bits)
        _unpack(self.bits, row)

    def accept(self, token: int) -> bool:
        assert self.matcher.accept_token(token)
        return bool(self.matcher.is_completed())


class LLGuidance:
    name = "llguidance"

    def __init__(self, spellings: Sequence[bytes | None], end: int, encode: Callable[[str], list[int]]) -> None:
        from llguidance import LLMatcher, LLTokenizer

        self.matcher, self.width = LLMatcher, len(spellings)
        self.tokenizer = LLTokenizer(_Vocabulary(spellings, end, encode), n_vocab=self.width, eos_token=end)

    def compile(self, profile: Profile, tags: Sequence[str], budget: int | None = None) -> object:
        rules = to_lark(profile, tags)
        if budget is not None:
            rules = rules.replace(f"s_{tags[0]}:", f"s_{tags[0]}[max_tokens={budget}]:")
        matcher = self.matcher(self.tokenizer, rules)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def start(self, compiled: Any) -> LLFollower:
        return LLFollower(compiled.deep_copy(), self.width)


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, spellings: Sequence[bytes | None], end: int, encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = end
        self.tokens = [spelled or b"<|special %d|>" % n for n, spelled in enumerate(spellings)]
        self.special_token_ids = [n for n, spelled in enumerate(spellings) if not spelled]
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class LLFollower:
    def __init__(self, matcher: Any, width: int) -> None:
        self.matcher = matcher
        self.bits = torch.full((1, (width + 31) // 32), -1, dtype=torch.int32)

    def fill(self, row: Tensor, left: int) -> None:
        self.matcher.unsafe_compute_mask_ptr(self.bits.data_ptr(), 4 * self.bits.numel())
        _unpack(self.bits, row)

    def accept(self, token: int) -> bool:
        assert self.matcher.consume_token(token), self.matcher.get_error()
        return bool(self.matcher.is_accepting())


def _unpack(bits: Tensor, row: Tensor) -> None:
    flat = np.unpackbits(bits.numpy().view(np.uint8)[0], count=len(row), bitorder="little")
    row.copy_(torch.from_numpy(flat.view(bool)))


# ---- paths


def _paths(ours: Ours, profile: Profile, encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    """A random path for each agent, and the canonical tokens of the first steps of an ordinary run."""
    rng = random.Random(profile.name)
    for tag in profile.agents:
        yield _random_path(ours, _grammar(profile, [tag]), rng)
    for step in ordinary_runs(1)[0].steps[:4]:
        if step.agent in profile.agents:
            yield encode(canonical(step, profile, ends_line=True))


def _random_path(ours: Ours, grammar: Grammar, rng: random.Random) -> list[int]:
    state, path = grammar.start, list[int]()
    while state != DONE:
        known = ours.masks.known(grammar.language, state)
        fitting = known.legal if len(path) < RANDOM_TOKENS else known.need == known.least
        path.append(rng.choice(fitting.nonzero()[:, 0].tolist()))
        state = ours.masks.after(grammar.language, state, path[-1])
    return path


# ---- what is measured


def main() -> None:
    if not _find_peers():
        return
    torch.set_num_threads(1)
    tokenizer = load_tokenizer("smollm2")
    spellings, end = tokenizer.spellings(), tokenizer.end_of_turn
    assert spellings is not None and end is not None
    ours = Ours(spellings)
    sides: list[Side] = [
        ours,
        XGrammar(spellings, end),
        LLGuidance(spellings, end, lambda text: list(tokenizer.encode([text])[0])),
    ]
    print(f"{len(spellings):,} tokens (SmolLM2); {', '.join(PEERS[:2])}; one thread", flush=True)
    figures = _budgets(load_profile(BUDGET_PROFILE), sides, spellings)
    spent: dict[tuple[str, str], list[float]] = {}
    measured = set[str]()
    for name in sys.argv[1:] or shipped():
        profile = load_profile(name)
        alike = repr([(tag, agent.shape, agent.verdict) for tag, agent in profile.agents.items()])
        if alike not in measured:
            measured.add(alike)
            _measure(profile, sides, list(_paths(ours, profile, lambda text: list(tokenizer.encode([text])[0]))), spent)
    mean = {key: sum(values) / len(values) for key, values in spent.items()}
    print("all of them:")
    for what, unit in UNITS.items():
        figures.append(Figure(what, mean[what, ours.name], unit))
        for side, peer in zip(sides[1:], PEERS, strict=False):
            ratio = mean[what, ours.name] / mean[what, side.name]
            figures.append(Figure(what, ratio, beside=peer))
            theirs = mean[what, side.name]
            print(f"  {what}: {mean[what, ours.name]:.4g} {unit}, {side.name} {theirs:.4g}, ratio {ratio:.2f}")
    save("grammar", " ".join(["python -m benchmarks.grammar", *sys.argv[1:]]), figures)


def _measure(
    profile: Profile, sides: Sequence[Side], paths: Sequence[Sequence[int]], spent: dict[tuple[str, str], list[float]]
) -> None:
    print(f"{profile.name}: {len(paths)} steps, {sum(map(len, paths))} tokens", flush=True)
    assert isinstance(sides[0], Ours)
    sides = [Ours(sides[0].spellings), *sides[1:]]  # which knows nothing yet
    compiled = {}
    for side in sides:
        gc.collect()
        before, start = _resident(), time.process_time()
        compiled[side.name] = side.compile(profile, list(profile.agents))
        seconds = time.process_time() - start
        spent.setdefault((COMPILE, side.name), []).append(seconds)
        print(f"  {side.name:<10} compiled in {seconds:.3f} CPU s, {_resident() - before:.1f} MB", flush=True)
    for what in (FIRST, AGAIN):
        unlike = {side.name: list[str]() for side in sides}
        micros = {side.name: list[float]() for side in sides}
        for path in paths:
            _follow(path, [(side, side.start(compiled[side.name])) for side in sides], micros, unlike)
        for name, each in micros.items():
            spent.setdefault((what, name), []).extend(each)
            each.sort()
            print(
                f"  {name:<10} {what}: mean {sum(each) / len(each):7.1f}, median {each[len(each) // 2]:7.1f}, "
                f"99 % {each[len(each) * 99 // 100]:7.1f}; masks unlike ours: {len(unlike[name])} {unlike[name][:2]}",
                flush=True,
            )


def _follow(
    path: Sequence[int],
    followers: Sequence[tuple[Side, Follower]],
    micros: dict[str, list[float]],
    unlike: dict[str, list[str]],
) -> None:
    rows = {side.name: torch.ones(side.width, dtype=torch.bool) for side, _ in followers}
    order = list(followers)
    for at, token in enumerate(path):
        random.shuffle(order)
        for side, follower in order:
            start = time.process_time()
            follower.fill(rows[side.name], FAR)
            micros[side.name].append(1e6 * (time.process_time() - start))
        mine = rows["ours"]
        for name, row in rows.items():
            if not torch.equal(row, mine):
                fewer, more = (int(n.sum()) for n in (mine & ~row, row & ~mine))
                unlike[name].append(f"{fewer} fewer, {more} more after {list(path[:at])}")
        for side, follower in order:
            start = time.process_time()
            follower.accept(token)
            micros[side.name][-1] += 1e6 * (time.process_time() - start)


def _budgets(profile: Profile, sides: Sequence[Side], spellings: Sequence[bytes | None]) -> list[Figure]:
    """How many steps end legally within the budget, written by a model that takes any token that is allowed."""
    shapes = {(agent.shape.model_dump_json(), repr(agent.verdict)): tag for tag, agent in profile.agents.items()}
    print(f"steps of {profile.name} with {BUDGET} tokens: {', '.join(shapes.values())}", flush=True)
    figures = []
    for side in sides:
        ends = []
        for tag in shapes.values():
            text, complete, length = _written(side.start(side.compile(profile, [tag], BUDGET)), side.width, spellings)
            legal = _grammar(profile, [tag]).admits(text.decode(errors="replace"), whole=True)
            ends.append(legal and complete and length <= BUDGET)
            print(f"  {side.name:<10} <{tag}> {length} tokens, legal {legal}: ...{text[-50:]!r}", flush=True)
        figures.append(
            Figure(f"steps that end legally within {BUDGET} tokens, {side.name}", sum(ends), unit=f"of {len(ends)}")
        )
    return figures


def _written(follower: Follower, width: int, spellings: Sequence[bytes | None]) -> tuple[bytes, bool, int]:
    rng, row, text = random.Random(0), torch.ones(width, dtype=torch.bool), b""
    for length in range(PATIENCE):
        follower.fill(row, max(BUDGET - length, 1))
        if not row.any():
            return text, False, length
        token = rng.choice(row.nonzero()[:, 0].tolist())
        if spellings[token] is None:  # the end of the turn
            return text, True, length
        text += spellings[token] or b""
        if follower.accept(token):
            return text, True, length + 1
    return text, False, PATIENCE


def _resident() -> float:
    """MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _find_peers() -> bool:
    place = Path(os.environ.get("COA_BENCH_GRAMMAR") or Path(__file__).resolve().parents[1] / "build" / "grammar")
    if not (place / "xgrammar").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), *PEERS]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"not measured: xgrammar and llguidance cannot be installed ({error})", file=sys.stderr)
            return False
    sys.path.append(str(place))
    return True


if __name__ == "__main__":
    main()
