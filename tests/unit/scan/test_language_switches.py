"""Runs that leave the language of their question, and runs that only quote another one."""

from __future__ import annotations

import pytest

from coa.scan.languages import language, scripts
from coa.scan.scanners.language_switches import LanguageSwitches
from support.scanned import note, notes, run_of, seen

SCANNER = LanguageSwitches()
ENGLISH = "I should look for the designer of the bridge, because the question asks for it and nothing else."
GERMAN = "Ich muss noch nach dem Namen der Brücke suchen, weil die Frage das verlangt und nicht mehr."
FRENCH = "Il faut chercher le nom du pont dans les pages, parce que la question est sur cela et pas plus."
CHINESE = "我需要先查找这座桥的设计者，然后再查找他的出生年份，最后给出答案。"
JAPANESE = "この橋の設計者を探してから、その人の生まれた年を調べて、答えを出します。"
RUSSIAN = "Мне нужно найти того, кто спроектировал этот мост, и дать ответ."
ASKED = "Who is the designer of the bridge in the town of Tamsel, and when was he born?"


@pytest.mark.parametrize(
    ("text", "spoken"),
    [(ENGLISH, "English"), (GERMAN, "German"), (FRENCH, "French"), (CHINESE, "Chinese"), (JAPANESE, "Japanese")],
)
def test_languages_are_told_by_function_words_and_script(text: str, spoken: str) -> None:
    assert language(text) == spoken


@pytest.mark.parametrize(
    "text", ["", "Ida Kroll", "1871, 1902, 1940", "Ida Kroll, Gustave Eiffel, John Roebling, Karl Culmann"]
)
def test_names_and_numbers_have_no_language(text: str) -> None:
    assert language(text, min_words=1) is None


def test_letters_of_formulas_are_of_no_script() -> None:
    assert dict(scripts("𝑥 = 𝟗")) == {} and dict(scripts("дом a")) == {"Cyrillic": 3, "Latin": 1}


@pytest.mark.parametrize(
    ("thought", "to"),
    [(GERMAN, "to German"), (FRENCH, "to French"), (CHINESE, "to Chinese characters"), (RUSSIAN, "to Cyrillic")],
)
def test_a_thought_in_another_language_is_found(thought: str, to: str) -> None:
    run = run_of(("think", ENGLISH), ("think", thought), ("think", thought), ("answer", "Ida"), question=ASKED)
    found = note(SCANNER, run)
    assert (found.step, found.kind) == (1, to) and "(2 such steps)" in found.message


def test_a_switch_from_the_first_thought_is_found_where_the_question_is_too_short() -> None:
    found = note(SCANNER, run_of(("think", ENGLISH), ("think", GERMAN), question="Tamsel?"))
    assert found.message == "step 0 is in English, this step is in German"


def test_a_japanese_question_thought_about_in_chinese_is_found() -> None:
    assert note(SCANNER, run_of(("think", CHINESE), question=JAPANESE)).kind == "to Chinese"


@pytest.mark.parametrize(
    "thought",
    [
        ENGLISH,
        "The name is 田中 (Tanaka), so I search for it in the index of the town, and then for the year.",
        "The file is `Ich muss noch nach dem Namen der Brücke suchen` and nothing else is in the folder of it.",
        "```py\nprint('Ich muss noch nach dem Namen der Brücke suchen, weil die Frage das verlangt')\n```",
        "The angle α + β + γ = π is what the question asks for, so I compute it.",
        "Ida Kroll, Karl Culmann, Johann Schwedler, Gustave Eiffel, Benjamin Baker, Fritz Leonhardt, Othmar Ammann",
    ],
)
def test_names_quotations_formulas_and_programs_are_no_switch(thought: str) -> None:
    assert notes(SCANNER, run_of(("think", thought), ("answer", "Ida"), question=ASKED)) == []


def test_what_an_observation_says_may_be_quoted() -> None:
    page = f"Тамсель. {RUSSIAN}"
    run = run_of(("web_search", "Тамсель мост"), seen(page), ("think", RUSSIAN), ("answer", RUSSIAN), question=ASKED)
    assert notes(SCANNER, run) == []


def test_a_query_may_be_in_any_language() -> None:
    assert notes(SCANNER, run_of(("web_search", RUSSIAN), seen("nothing"), ("answer", "Ida"), question=ASKED)) == []


@pytest.mark.parametrize(
    "question", ["Translate this sentence, please: I look for the bridge.", "What is the Russian text on it?"]
)
def test_a_question_may_ask_for_another_language(question: str) -> None:
    assert notes(SCANNER, run_of(("answer", RUSSIAN), question=question)) == []


def test_a_run_that_stays_in_the_language_of_its_question_is_clean() -> None:
    assert notes(SCANNER, run_of(("think", CHINESE), ("answer", CHINESE), question=CHINESE)) == []
    assert notes(SCANNER, run_of(("think", "OK, 搜索 Tamsel bridge designer Ida Kroll"), question=CHINESE)) == []
