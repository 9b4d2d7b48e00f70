"""Which script and which language a text is in, without a library: by Unicode names and by function words.

It answers only where it is certain. A text of few words, of names and numbers, or of two languages that share their
function words has no language here, and nothing follows from that.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Final

MOST: Final = 20_000
"""Number of characters of a text that are looked at."""
_SCRIPTS: Final = {
    "LATIN": "Latin", "FULLWIDTH": "Latin", "CYRILLIC": "Cyrillic", "GREEK": "Greek", "ARABIC": "Arabic",
    "HEBREW": "Hebrew", "CJK": "Chinese characters", "HIRAGANA": "Japanese kana", "KATAKANA": "Japanese kana",
    "HANGUL": "Hangul", "DEVANAGARI": "Devanagari", "BENGALI": "Bengali", "TAMIL": "Tamil", "TELUGU": "Telugu",
    "THAI": "Thai", "GEORGIAN": "Georgian", "ARMENIAN": "Armenian", "ETHIOPIC": "Ethiopic", "KHMER": "Khmer",
    "GUJARATI": "Gujarati", "GURMUKHI": "Gurmukhi", "KANNADA": "Kannada", "MALAYALAM": "Malayalam",
    "MYANMAR": "Burmese", "SINHALA": "Sinhala", "LAO": "Lao", "TIBETAN": "Tibetan", "MONGOLIAN": "Mongolian",
}  # fmt: skip
"""The first word of a letter's Unicode name, and its script in words. Letters of formulas are of none."""
_DENSE: Final = frozenset({"Chinese characters", "Japanese kana", "Hangul"})
_DENSITY: Final = 3
"""A character of these scripts says as much as about three letters."""
ASKED_FOR: Final = {
    "Cyrillic": "russian ukrainian bulgarian serbian macedonian belarusian cyrillic",
    "Greek": "greek", "Arabic": "arabic persian farsi urdu", "Hebrew": "hebrew yiddish",
    "Chinese characters": "chinese mandarin cantonese japanese kanji hanzi pinyin",
    "Japanese kana": "japanese kana hiragana katakana", "Hangul": "korean hangul",
    "Devanagari": "hindi sanskrit nepali",
    "Thai": "thai", "Georgian": "georgian", "Armenian": "armenian", "Tamil": "tamil", "Bengali": "bengali",
}  # fmt: skip
"""Words with which a question asks for a script that it is not written in."""
_FUNCTION_WORDS: Final = {
    "English": "the of and to is in that it was for are with this which from be have has not but by an we need will "
    "would should so what there their they i my can",
    "German": "der die das und ist nicht ein eine einen dem den des zu mit auf für von im auch sich wird werden dass "
    "ich wir noch aber aus bei nach",
    "French": "le la les des et est une dans que qui pour sur avec pas ce cette sont par je nous du au aux il elle "
    "mais être ont donc",
    "Spanish": "el los las y es una en que por para con del se lo como pero más son está este esta fue ha muy hay "
    "entonces",
    "Italian": "il lo gli e è di che per con non una del della dei nel sono come più questo questa ma anche quindi "
    "dalla alla",
    "Portuguese": "o os as e é uma em que para com não do da dos das no na mais como mas foi são este esta então pelo "
    "pela",
    "Dutch": "de het een en van is dat niet op te met voor zijn aan er maar om ook deze dit wordt naar bij nog uit ik",
}
_SPEAKERS: Final = {
    word: [name for name, known in _FUNCTION_WORDS.items() if word in known.split()]
    for words in _FUNCTION_WORDS.values()
    for word in words.split()
}
"""The languages of each function word."""
_NO_LETTERS: Final = bytes(code for code in range(128) if not chr(code).isalpha())
_MIN_WORDS: Final = 12
_MIN_SHARE: Final = 0.25
_NOT_PROSE: Final = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+|\\[A-Za-z]+|</?[a-z_]+>|\$[^$\n]{1,300}\$", re.DOTALL
)
_WORD: Final = re.compile(r"[^\W\d_]+")


def prose(text: str) -> str:
    """The text without programs, addresses and formulas."""
    return _NOT_PROSE.sub(" ", text[:MOST])


def scripts(text: str) -> Counter[str]:
    """How much of a text is in which script, in letters; characters of dense scripts count as several."""
    if text.isascii():
        letters = len(text[:MOST].encode().translate(None, _NO_LETTERS))
        return Counter(Latin=letters) if letters else Counter()
    found: Counter[str] = Counter()
    for character, count in Counter(text[:MOST]).items():
        if (script := _script(character)) is not None:
            found[script] += count * (_DENSITY if script in _DENSE else 1)
    return found


@lru_cache(maxsize=20_000)
def _script(character: str) -> str | None:
    if character.isascii():
        return "Latin" if character.isalpha() else None
    if not character.isalpha():
        return None
    return _SCRIPTS.get(unicodedata.name(character, "").partition(" ")[0])


def in_script(character: str, wanted: frozenset[str]) -> bool:
    return _script(character) in wanted


def language(text: str, *, min_words: int = _MIN_WORDS) -> str | None:
    """The language of a text, where its function words leave no doubt; None for everything else."""
    found = scripts(text)
    if not found:
        return None
    han, kana = found["Chinese characters"], found["Japanese kana"]
    if han + kana > 0.6 * found.total() and han + kana >= 20 * _DENSITY:
        if kana >= 0.1 * (han + kana):
            return "Japanese"
        return "Chinese" if not kana else None
    words = [word.casefold() for word in _WORD.findall(text[:MOST])]
    if found["Latin"] < 0.9 * found.total() or len(words) < min_words:
        return None
    spoken = Counter(name for word in words for name in _SPEAKERS.get(word, ()))
    (name, best), (_, second) = [*spoken.most_common(2), ("", 0), ("", 0)][:2]
    return name if best >= _MIN_SHARE * len(words) and best >= 2 * second else None
