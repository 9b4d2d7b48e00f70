"""Tokenizers from a folder, a `tokenizer.json`, a GGUF file, a hub id, or `smollm2` (the embedded weights).

They are built on the `tokenizers` library alone, so nothing here needs torch or transformers. A run needs two views of
one tokenizer. The prompt is tokenised as the model's own tokenizer does it, control tokens included. Everything after
it is tokenised in pieces, a span at a time, and there a piece must decode to exactly its text: no blank is added in
front of it, and a control token that is spelled out in a web page or a question is plain text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from os.path import commonprefix
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as FastTokenizer

from coa import hub
from coa.errors import TokenizerError
from coa.installing import WEIGHTS, weights_file
from coa.models.chat_template import ChatTemplate
from coa.models.gguf import read_header
from coa.models.gguf_vocabulary import ends_by_name, read_vocabulary
from coa.models.word_cache import WordCache
from coa.trajectory import Message

SMOLLM2: Final = "smollm2"
NANO: Final = "nano"
"""The adapter over SmolLM2 that comes with this package, trained as a chain of agents for the offline world."""
BUILT_IN: Final = (NANO, SMOLLM2)
_NANO_FOLDER: Final = Path(__file__).parent / "nano"
_SOURCES_HINT: Final = "give a model folder, a tokenizer.json, a .gguf file, a hub id, or smollm2"
_DOWNLOAD_HINT: Final = (
    "check the name and the connection, log in with `hf auth login`, or download it and give its folder"
)
_PLACE: Final = "\u2063COA{}\u2063"
"""Placeholder for the content of a message while the template around it is tokenised."""
_SEGMENTS: Final = 256
"""Number of prompt segments whose ids are cached."""


class TextTokenizer:
    """A tokenizer for ledgers.

    It adds no blanks between spans, and never turns spelled-out control tokens into their ids.
    """

    def __init__(
        self, fast: FastTokenizer, template: ChatTemplate, *, end_of_turn: int | None, end_ids: Iterable[int] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        fast.no_truncation()
        fast.no_padding()
        self._whole = fast
        self._settings = settings or {}
        self._template = template
        self.end_of_turn = end_of_turn
        self.end_ids = frozenset(end_ids) | ({end_of_turn} if end_of_turn is not None else frozenset())
        # SentencePiece-style tokenizers put a blank before a text and remove it when they decode. A span inside a
        # transcript already has a text before it, so its tokenizer must do neither.
        whole = json.loads(fast.to_str())
        inside = _without_prefix(dict(whole))
        self._inside = FastTokenizer.from_str(json.dumps(inside))
        self._inside.no_truncation()
        self._inside.no_padding()
        # Control tokens that are spelled out in a page or a question are plain text there.
        self._inside.encode_special_tokens = True
        added = fast.get_added_tokens_decoder()
        specials = {index: token.content for index, token in added.items() if token.special}
        self._special_ids = frozenset(specials)
        self._specials = tuple(specials.values())
        self._borders = _borders(list(added.values()))
        self._segments: OrderedDict[str, list[int]] = OrderedDict()
        self._pieces: dict[int, str] = {}
        self._words = WordCache.of(inside, specials, self._encode_whole)
        # Then what follows a control token in a prompt is cut into words as it is inside a text.
        unchanged = all(inside[part] == whole[part] for part in ("normalizer", "pre_tokenizer"))
        odd = any(t.special and (t.normalized or t.lstrip or t.rstrip or t.single_word) for t in added.values())
        self._prompt_words = self._words if unchanged and not odd and self._borders is not None else None
        # Then the text of several ids that each spell ASCII is the text of each, joined.
        self._bytewise = (inside["decoder"] or {}).get("type") == "ByteLevel"

    @cached_property
    def fingerprint(self) -> str:
        settings = json.loads(self._whole.to_str())
        settings["truncation"] = settings["padding"] = None
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def vocabulary_size(self) -> int:
        return self._whole.get_vocab_size()

    def save(self, folder: Path) -> None:
        """Write the tokenizer files of a model folder, which `load_tokenizer`, transformers and vLLM read."""
        self._whole.save(str(folder / "tokenizer.json"))
        end = None if self.end_of_turn is None else self.decode([self.end_of_turn])
        written = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self._settings,
            **({"eos_token": end} if end else {}),
            "chat_template": self._template.source,
        }
        text = json.dumps(written, ensure_ascii=False, indent=2)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
        # A template file would take precedence over the setting.
        (folder / "chat_template.jinja").unlink(missing_ok=True)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self._words is None:
            return self._encode_anew(texts)
        encoded = [self._words.encode(text) for text in texts]
        anew = iter(self._encode_anew([text for text, ids in zip(texts, encoded, strict=True) if ids is None]))
        return [next(anew) if ids is None else ids for ids in encoded]

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        text = self._template.render(messages)
        if not any(special in message.content for message in messages for special in self._specials):
            return text, self._encode_template(text)
        return self._encode_guarded(messages)

    def decode(self, ids: Sequence[int]) -> str:
        if self._bytewise and (text := "".join(self._texts(ids))).isascii():
            return text
        return self._inside.decode(list(ids), skip_special_tokens=False)

    def spellings(self) -> list[bytes | None] | None:
        """The bytes that each id spells inside a text; None for ids that spell none, such as control tokens.

        The result is None if ids do not spell the same bytes everywhere, as in WordPiece.
        """
        from coa.models.spelling import speller

        spell = speller(json.loads(self._inside.to_str())["decoder"])
        if spell is None:
            return None
        added = {index: token.content for index, token in self._inside.get_added_tokens_decoder().items()}
        names = {index: name for name, index in self._inside.get_vocab(with_added_tokens=True).items()}
        return [
            None
            if index in self._special_ids or index not in names
            else (added[index].encode() if index in added else spell(names[index]))
            for index in range(max(names) + 1)
        ]

    def split(self, ids: Sequence[int]) -> list[str]:
        whole = self.decode(ids)
        if whole.isascii():  # no character consists of several ids, so each id can be decoded alone
            texts = self._texts(ids)
            if "".join(texts) == whole:
                return texts
        stream = decoders.DecodeStream(skip_special_tokens=False)
        try:
            texts = [stream.step(self._inside, token) or "" for token in ids]
        except Exception:  # the library raises bare Exception for bytes that spell no character
            texts = []
        return texts if "".join(texts) == whole else self._split_slowly(ids, whole)

    def _split_slowly(self, ids: Sequence[int], whole: str) -> list[str]:
        """For ids that spell broken characters, where later ids can change the text of earlier ones.

        The ids are halved wherever the halves decode separately to the whole, so only the broken part takes long.
        """
        middle = len(ids) // 2
        for cut in sorted(range(max(middle - 8, 1), min(middle + 8, len(ids) - 1)), key=lambda at: abs(at - middle)):
            left = self.decode(ids[:cut])
            if whole.startswith(left) and left + self.decode(ids[cut:]) == whole:
                return self._split_slowly(ids[:cut], left) + self._split_slowly(ids[cut:], whole[len(left) :])
        texts, settled = [], 0
        for count in range(1, len(ids) + 1):
            prefix = whole if count == len(ids) else self.decode(ids[:count])
            agreed = max(settled, len(commonprefix([prefix, whole])))  # noqa: RUF071  # by characters, as intended
            texts.append(whole[settled:agreed])
            settled = agreed
        return texts

    def _encode_anew(self, texts: Sequence[str]) -> list[list[int]]:
        # Some vocabularies contain control tokens as ordinary pieces, so that plain text can still produce them.
        return [
            ids if self._special_ids.isdisjoint(ids) else self._spell(text)
            for text, ids in zip(texts, self._encode_whole(texts), strict=True)
        ]

    def _encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [encoding.ids for encoding in self._inside.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _spell(self, text: str) -> list[int]:
        """Ids of a text that spells control tokens. It is cut inside each of them, so that none is recognised."""
        spelled = re.compile("|".join(map(re.escape, self._specials)))
        cuts = [0, *(match.start() + 1 for match in spelled.finditer(text)), len(text)]
        parts = self._inside.encode_batch_fast([text[a:b] for a, b in pairwise(cuts)], add_special_tokens=False)
        return [token for part in parts for token in part.ids if token not in self._special_ids]

    def _texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, decoded alone."""
        try:
            return [self._pieces[token] for token in ids]
        except KeyError:
            for token in set(ids).difference(self._pieces):
                self._pieces[token] = self._inside.decode([token], skip_special_tokens=False)
            return [self._pieces[token] for token in ids]

    def _encode_template(self, text: str) -> list[int]:
        """Encode segment by segment, each beginning with a control token: segments that prompts share are cached.

        The library first cuts texts at control tokens, so this gives the ids of the whole text.
        """
        if self._borders is None:
            return list(self._whole.encode(text, add_special_tokens=False).ids)
        cuts = [0, *(found.start() for found in self._borders.finditer(text) if found.start()), len(text)]
        return [token for a, b in pairwise(cuts) for token in self._segment(text[a:b])]

    def _segment(self, text: str) -> list[int]:
        ids = self._segments.pop(text, None)
        if ids is None:
            ids = self._encode_segment(text)
            if len(self._segments) >= _SEGMENTS:
                self._segments.popitem(last=False)
        self._segments[text] = ids  # the most recently used segment is the last one
        return ids

    def _encode_segment(self, text: str) -> list[int]:
        if self._prompt_words is not None and self._borders is not None:
            control = self._borders.match(text)
            ids = self._prompt_words.encode(text[control.end() :] if control else text)
            first = self._whole.token_to_id(control.group()) if control else None
            if ids is not None:
                return ids if first is None else [first, *ids]
        return list(self._whole.encode(text, add_special_tokens=False).ids)

    def _encode_guarded(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """For messages that spell control tokens: encode the template around them, and the messages as plain text."""
        places = [_PLACE.format(number) for number in range(len(messages))]
        frame = self._template.render(
            [message.model_copy(update={"content": place}) for message, place in zip(messages, places, strict=True)]
        )
        text, ids = "", list[int]()
        for message, place in zip(messages, places, strict=True):
            before, found, frame = frame.partition(place)
            if not found:
                raise TokenizerError("the chat template hides a message that spells a control token of the model")
            text += before + message.content
            ids += self._encode_template(before) if before else []
            ids += self.encode([message.content])[0]
        return text + frame, ids + (self._encode_template(frame) if frame else [])


def _borders(added: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """Matches the control tokens at which a prompt may be cut; None if cutting could change its ids."""
    tokens = [t.content for t in added if t.special and not (t.normalized or t.lstrip or t.single_word)]
    overlapping = any(token in other.content and token != other.content for token in tokens for other in added)
    return re.compile("|".join(map(re.escape, tokens))) if tokens and not overlapping else None


def load_tokenizer(source: str | Path) -> TextTokenizer:
    """Load the tokenizer of a model.

    Args:
        source: `smollm2`, `nano`, a model folder, a `tokenizer.json`, a `.gguf` file, or a hub id.

    Raises:
        TokenizerError: There is no tokenizer, or it cannot be used.
    """
    source = result_folder(source)
    name = str(source)
    if name == SMOLLM2:
        return _from_gguf(smollm2_file())
    path = Path(source)
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path)
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        if base := _settings(_beside(path, "adapter_config.json")).get("base_model_name_or_path"):
            return load_tokenizer(base)  # an adapter without a tokenizer uses that of its base
        raise TokenizerError(
            f"the folder {path} has no tokenizer.json",
            hint="save the model with a fast tokenizer: AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
        )
    if path.is_dir():
        return _from_files(path / "tokenizer.json", lambda name: _beside(path, name))
    if path.is_file():
        return _from_files(path, lambda name: _beside(path.parent, name))
    if hub.is_path(name):
        raise TokenizerError(f"there is no tokenizer at {name}", hint=_SOURCES_HINT)
    if near := built_in_like(name):
        raise TokenizerError(f"there is no tokenizer {name!r}; did you mean {near}?", hint=_SOURCES_HINT)
    return _from_hub(name)


def built_in_like(name: str) -> str | None:
    """The built-in model whose name is nearly this one; None also for what was downloaded from the hub."""
    near = get_close_matches(name.lower(), BUILT_IN, n=1, cutoff=0.7)
    return near[0] if near and hub.downloaded(name, "model") is None else None


def result_folder(source: str | Path) -> str | Path:
    """The model folder of a training run for the folder of the run, and for `nano` that of the package."""
    if str(source) == NANO:
        return _NANO_FOLDER
    model = Path(source) / "model"
    return model if (model / "tokenizer.json").is_file() and not (Path(source) / "tokenizer.json").is_file() else source


def _beside(folder: Path, name: str) -> Path | None:
    path = folder / name
    return path if path.is_file() else None


def _from_files(tokenizer: Path, beside: Callable[[str], Path | None]) -> TextTokenizer:
    """`beside` finds another file of the same model, if there is one."""
    try:
        fast = FastTokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises bare Exception for any defect of the file
        raise TokenizerError(f"{tokenizer} is not a tokenizer.json: {error}", hint=_SOURCES_HINT) from error
    settings, generation = _settings(beside("tokenizer_config.json")), _settings(beside("generation_config.json"))
    template = beside("chat_template.jinja")
    source = template.read_text(encoding="utf-8") if template else _template_in(settings)
    # Special tokens are strings or objects in the file.
    found = {name: settings[name] for name in ("bos_token", "eos_token") if settings.get(name)}
    special = {name: str(token.get("content") if isinstance(token, dict) else token) for name, token in found.items()}
    return _build(fast, source, special, _ids(generation.get("eos_token_id")), settings)


def _settings(path: Path | None) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _ids(value: object) -> list[int]:
    """`eos_token_id` is an id, a list of ids, or missing."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]


def _from_hub(name: str) -> TextTokenizer:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if (folder := hub.find(name, "model", TokenizerError, what="the tokenizer of")) is not None:
        if not (folder / "tokenizer.json").is_file():
            raise TokenizerError(f"the download of {name!r} in {folder} has no tokenizer.json", hint=_DOWNLOAD_HINT)
        return _from_files(folder / "tokenizer.json", lambda name: _beside(folder, name))

    def optional(filename: str) -> Path | None:
        try:
            return Path(hf_hub_download(name, filename))
        except EntryNotFoundError:
            return None

    try:
        return _from_files(Path(hf_hub_download(name, "tokenizer.json")), optional)
    except TokenizerError:
        raise
    except Exception as error:  # network, gated, misspelled: the library's errors have no common base
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise TokenizerError(f"the hub repository {name!r} has no tokenizer.json") from error
        raise TokenizerError(
            f"cannot get the tokenizer of {name!r} from the hub: {type(error).__name__}: {error}",
            hint=_DOWNLOAD_HINT,
        ) from error


def smollm2_file() -> Path:
    if (file := weights_file()) is None:
        raise TokenizerError("the weights of SmolLM2 are not here", needs=[WEIGHTS])
    return file


def _from_gguf(path: Path) -> TextTokenizer:
    header = read_header(path)
    try:
        fast = read_vocabulary(header)
    except TokenizerError as error:
        hint = "give the folder with the model's own tokenizer.json instead"
        raise TokenizerError(f"cannot read the tokenizer of {path}: {error.message}", hint=hint) from error
    ids = {name: _ids(header.get(f"tokenizer.ggml.{name}_token_id")) for name in ("bos", "eos", "eot", "eom")}
    named = {f"{name}_token": fast.id_to_token(ids[name][0]) for name in ("bos", "eos") if ids[name]}
    special = {name: token for name, token in named.items() if token is not None}
    ends = [index for name in ("eos", "eot", "eom") for index in ids[name]] + ends_by_name(fast)
    return _build(fast, str(header.get("tokenizer.chat_template", "")), special, ends, special)


def _build(
    fast: FastTokenizer, template: str, special: dict[str, str], ends: Sequence[int], settings: Mapping[str, Any]
) -> TextTokenizer:
    end = fast.token_to_id(special["eos_token"]) if special.get("eos_token") else None
    return TextTokenizer(fast, ChatTemplate(template, special), end_of_turn=end, end_ids=ends, settings=settings)


def _template_in(settings: dict[str, Any]) -> str:
    """`chat_template` is a string, or a list of named templates, of which `default` is used."""
    template = settings.get("chat_template") or ""
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default") or next(iter(named.values()), "")
    return str(template)


def _without_prefix(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a tokenizer without the blank that SentencePiece puts before a text and strips when decoding."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        settings[part] = _strip_prefixing(settings.get(part))
    settings["post_processor"] = None
    return settings


def _strip_prefixing(part: dict[str, Any] | None) -> dict[str, Any] | None:
    if part is None:
        return None
    match part["type"]:
        case "Prepend":
            return None
        case "Strip" if part.get("content") == " ":
            return None
        case "Metaspace":
            return {**part, "prepend_scheme": "never"}
        case "ByteLevel":
            return {**part, "add_prefix_space": False}
        case "Sequence":
            key = next(name for name in ("normalizers", "pretokenizers", "decoders") if name in part)
            kept = [stripped for item in part[key] if (stripped := _strip_prefixing(item)) is not None]
            return {**part, key: kept} if kept else None
    return part
