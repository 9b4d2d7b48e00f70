"""Code with its tokens marked by Pygments, as data: the page makes an element of each token, so no markup travels."""

from __future__ import annotations

from typing import Final

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Error, Generic, Keyword, Literal, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

LONGEST: Final = 10_000
"""Number of characters above which code is shown plain: the server's other streams wait while it is read, and what is
written to be slow to read takes 10 ms for a thousand characters."""

_CLASSES: Final[tuple[tuple[_TokenType, str], ...]] = (
    (Comment, "comment"),
    (Keyword, "keyword"),
    (String, "string"),
    (Number, "number"),
    (Literal, "number"),
    (Name.Tag, "name"),
    (Name.Attribute, "name"),
    (Name.Function, "name"),
    (Name.Class, "name"),
    (Name.Decorator, "name"),
    (Name.Builtin, "builtin"),
    (Name.Exception, "builtin"),
    (Operator.Word, "keyword"),
    (Generic.Error, "error"),
    (Error, "error"),
)


def highlight(code: str, language: str) -> list[tuple[str, str]] | None:
    """The code as (class, text) pairs that add up to it; None if it is too long or the language is unknown."""
    if len(code) > LONGEST:
        return None
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None
    pairs: list[tuple[str, str]] = []
    for kind, text in lexer.get_tokens(code):
        name = next((name for known, name in _CLASSES if kind in known), "")
        if pairs and pairs[-1][0] == name:
            pairs[-1] = (name, pairs[-1][1] + text)
        else:
            pairs.append((name, text))
    # Lexers read line ends as \n. Code in which they differ is not what was written any more.
    return pairs if "".join(text for _, text in pairs) == code else None
