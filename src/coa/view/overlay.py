"""The tokens of a run: which are trained, and with which probability the model sampled each.

Ids and mask come from the ledger, as in SFT and RL. Where the run was sampled with the tokenizer at hand, the ids are
those that were sampled, with their logprobs; otherwise the text is tokenised, as SFT would. Without any tokenizer the
pieces of the transcript are shown whole: who wrote each is known without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, TypedDict

import orjson

from coa.errors import CoaError, LedgerError
from coa.folder import CONFIG
from coa.models.tokenizer import SMOLLM2, TextTokenizer, load_tokenizer
from coa.trajectory import Author, Profile, Trajectory
from coa.trajectory.codec import pieces
from coa.trajectory.ledger import PROMPT, ledger_of
from coa.trajectory.shorten import shorten

LONGEST: Final = 2_000_000
"""Number of characters above which the text is not split: a page cannot show a million tokens."""
_PIECE: Final = 20_000
"""Number of characters that are then shown of each piece."""
_LOADED: Final = 4
"""Number of tokenizers that stay in memory."""

Token = tuple[str, int | None, int, float | None]
"""Text, id, whether it is trained (0 or 1), logprob."""


class TokenSpan(TypedDict):
    step: int
    """-1 for the prompt."""
    agent: str
    tokens: list[Token]


class TokensView(TypedDict):
    tokenizer: str
    problem: str | None
    """What the reader should know, for instance that the run was sampled with another tokenizer."""
    total: int
    trained: int
    spans: list[TokenSpan]


def tokens_view(trajectory: Trajectory, profile: Profile, tokenizers: Sequence[str]) -> TokensView:
    """`tokenizers` are those to try; the one that the run was sampled with wins, else the first that can be opened."""
    name, tokenizer, problem = _chosen(trajectory, tokenizers)
    try:
        if (size := sum(len(step.text) for step in trajectory.steps)) > LONGEST:
            problem = f"the run has {size:,} characters, too many to show token by token"
            return _view("", problem, _shortened(_by_author(trajectory, profile)))
        if tokenizer is None:
            return _view("", problem, _by_author(trajectory, profile))
        try:
            return _view(name, problem, _spans(trajectory, profile, tokenizer))
        except (LedgerError, OverflowError) as error:  # the latter for ids that no vocabulary has
            why = error.message if isinstance(error, LedgerError) else "the sampled ids are not of this tokenizer"
            return _view("", why, _by_author(trajectory, profile))
    except CoaError as error:  # steps that the profile cannot write, such as those of an agent that it does not have
        return _view("", error.message, _by_step(trajectory))


def tokenizers_of(folder: Path, given: str | None) -> list[str]:
    """The given tokenizer, or those that may belong to a run folder: of its own model, of the model it ran, SmolLM2."""
    if given is not None:
        return [given]
    found = [str(place) for place in (folder / "model", folder) if (place / "tokenizer.json").is_file()]
    try:
        config = orjson.loads((folder / CONFIG).read_bytes())
        named = [config.get("model"), *(config.get(part, {}).get("model") for part in ("config", "run", "settings"))]
    except (OSError, orjson.JSONDecodeError, AttributeError):
        named = []
    found += [name for name in named if isinstance(name, str) and Path(name).is_dir()]
    return [*dict.fromkeys(found), SMOLLM2]


def _chosen(trajectory: Trajectory, names: Sequence[str]) -> tuple[str, TextTokenizer | None, str | None]:
    opened: list[tuple[str, TextTokenizer]] = []
    problem = "there is no tokenizer to split the text; name one with --tokenizer"
    for name in names:
        try:
            tokenizer = _load(name)
        except CoaError as error:
            problem = error.message
            continue
        if tokenizer.fingerprint == trajectory.tokenizer:
            return name, tokenizer, None
        opened.append((name, tokenizer))
    if not opened:
        return "", None, problem
    sampled = any(step.tokens is not None for step in trajectory.steps)
    other = "the run was sampled with another tokenizer, so ids and logprobs are not shown; name it with --tokenizer"
    return *opened[0], other if sampled else None


@lru_cache(_LOADED)
def _load(name: str) -> TextTokenizer:
    return load_tokenizer(name)


def _spans(trajectory: Trajectory, profile: Profile, tokenizer: TextTokenizer) -> Iterator[TokenSpan]:
    for span in ledger_of(trajectory, tokenizer, profile).spans:
        trained = int(span.author is Author.MODEL)
        logprobs = span.logprobs or (None,) * len(span.ids)
        texts = tokenizer.split(span.ids)
        agent = "" if span.step == PROMPT else trajectory.steps[span.step].agent
        tokens: list[Token] = [
            (text, token, trained, logprob) for text, token, logprob in zip(texts, span.ids, logprobs, strict=True)
        ]
        yield TokenSpan(step=span.step, agent=agent, tokens=tokens)


def _by_author(trajectory: Trajectory, profile: Profile) -> Iterator[TokenSpan]:
    for step, author, text in pieces(trajectory.steps, profile):
        token: Token = (text, None, int(author is Author.MODEL), None)
        yield TokenSpan(step=step, agent=trajectory.steps[step].agent, tokens=[token])


def _shortened(spans: Iterable[TokenSpan]) -> Iterator[TokenSpan]:
    for span in spans:
        tokens: list[Token] = [
            (shorten(text, _PIECE), token, trained, logprob) for text, token, trained, logprob in span["tokens"]
        ]
        yield {**span, "tokens": tokens}


def _by_step(trajectory: Trajectory) -> Iterator[TokenSpan]:
    """The texts without their tags."""
    for number, step in enumerate(trajectory.steps):
        token: Token = (step.surface or step.text, None, int(step.author is Author.MODEL), None)
        yield TokenSpan(step=number, agent=step.agent, tokens=[token])


def _view(tokenizer: str, problem: str | None, spans: Iterable[TokenSpan]) -> TokensView:
    found = list(spans)
    flat = [token for span in found for token in span["tokens"]]
    return TokensView(
        tokenizer=Path(tokenizer).name if tokenizer else "",
        problem=problem,
        total=len(flat),
        trained=sum(token[2] for token in flat),
        spans=found,
    )
