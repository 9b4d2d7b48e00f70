"""Code that an agent wrote in order to act: what of it is computation, and what only calls the team.

A code agent calls tools and members of the team from inside a program. A program that does nothing but call them and
print what they return is not a step; its calls are. Real computation becomes a program that runs without any other,
because the student's sandbox has neither the team nor the variables of earlier programs: calls are replaced by what
they returned, and the statements of earlier programs that set or change what it uses are put before it.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from coa.distill.team_run import ToolCall

FINISH: Final = ("final_answer", "finish", "submit_answer")
_PROGRAMS: Final = ("python_interpreter", "code", "python", "execute_code", "code_interpreter")
_LONGEST_LITERAL: Final = 200
"""Characters of a returned text that may be copied into a program; nobody would copy a page into one."""
_HARMLESS: Final = frozenset({"print", "str", "repr"})
_BUILTINS: Final = frozenset(dir(builtins))
_CHANGING: Final = re.compile(
    "add|append|appendleft|clear|discard|extend|insert|pop|popitem|popleft|remove|reverse|seed|setdefault|shuffle|sort"
    "|update|write"
)
"""Methods that change the object they are called on, anywhere in a statement."""
_LOGS: Final = re.compile(
    r"\A\s*Execution logs:\n?(?P<logs>.*?)(?:\n?Last output from code snippet:\n?(?P<last>.*))?\Z", re.S
)
_REPORT: Final = re.compile(r"^Here is the final answer from your managed agent '[^'\n]*':\n", re.MULTILINE)


def is_program(call: ToolCall) -> bool:
    """Whether a call is code that the model wrote."""
    return call.name in _PROGRAMS and bool(call.arguments.get("code") or call.arguments.get("text"))


@dataclass(frozen=True, slots=True)
class CodeAction:
    computes: bool
    calls: tuple[tuple[str, dict[str, JsonValue] | None], ...]
    """Tools and agents it calls, with their arguments where these are literals."""
    finishes: bool
    program: str = ""
    """A program that runs without any other; empty where that is not possible, and `why` says why."""
    why: str = ""


@dataclass
class Workspace:
    """What the programs of one agent have defined so far."""

    statements: list[ast.stmt] = field(default_factory=list)
    latest: int = 0
    """Where the definitions of the latest program begin."""

    def read(self, code: str, team: frozenset[str], returned: Mapping[str, Sequence[str]]) -> CodeAction:
        """`team` holds the names of tools and agents; `returned` is what their calls returned, in order."""
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            # It failed in the team's hands too, and that is the lesson.
            return CodeAction(True, (), False, program=code)
        known = team | frozenset(FINISH)
        calls = [call for call in _calls(tree) if isinstance(call.func, ast.Name) and call.func.id in known]
        made = tuple((_name(call), _literals(call)) for call in calls if _name(call) not in FINISH)
        finishes = any(_name(call) in FINISH for call in calls)
        whole, left = _substituted(tree, team, returned)
        carried = self._needed(_wanted(whole.body))
        # Statements that show something without calling the team for it.
        printed = [
            statement
            for statement in tree.body
            if isinstance(statement, ast.Expr) and not any(_name(call) in known for call in _calls(statement))
        ]
        shown = self._needed(_wanted(printed) - _set(tree.body))
        self.latest = len(self.statements)
        self.statements += [statement for statement in whole.body if _touched(statement)]
        # Printing what an earlier program computed is where its value is seen for the first time.
        if not any(_computes(statement, known) for statement in (*tree.body, *shown)):
            return CodeAction(False, made, finishes)
        left = left or next((_name(call) for one in carried for call in _calls(one) if _name(call) in team), "")
        if left:
            why = f"the program uses what {left} returned, which is too long to copy or came from a loop"
            return CodeAction(True, made, finishes, why=why)
        program = "\n".join(ast.unparse(_silent(statement)) for statement in carried)
        # Where nothing was replaced or carried over, the program stays as it was written, comments included.
        body = ast.unparse(whole) if calls else code
        return CodeAction(True, made, finishes, program=f"{program}\n{body}" if program else body)

    def failed(self, error: str) -> None:
        """Forget the statements that the latest program did not reach: from the one that the error quotes, or all."""
        mine = self.statements[self.latest :]
        quoted = [number for number, statement in enumerate(mine) if ast.unparse(statement) in error]
        del self.statements[self.latest + (quoted[0] if quoted else 0) :]

    def _needed(self, wanted: set[str]) -> list[ast.stmt]:
        """Earlier statements that set or change the wanted names, and those that these use, in their order."""
        kept: list[ast.stmt] = []
        for statement in reversed(self.statements):
            if _touched(statement) & wanted:
                kept.append(statement)
                wanted = (wanted - _set([statement])) | _reads(statement)
        return kept[::-1]


def without_logs(text: str) -> str:
    """What a program printed, without the frames that smolagents puts around output and around reports."""
    text = _REPORT.sub("", text)
    found = _LOGS.match(text)
    if not found:
        return text
    logs, last = found.group("logs").strip("\n"), (found.group("last") or "").strip()
    return "\n".join(part for part in (logs, last if last != "None" else "") if part)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _literals(call: ast.Call) -> dict[str, JsonValue] | None:
    try:
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        placed = [ast.literal_eval(argument) for argument in call.args]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if len(placed) == 1 and not named:
        return {"text": placed[0]}
    return {**{f"argument_{number}": value for number, value in enumerate(placed)}, **named}


def _computes(statement: ast.stmt, known: frozenset[str]) -> bool:
    """Whether a statement does more than call the team, keep what it returned, and print it."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
        return False
    if isinstance(statement, ast.Assign):
        return not all(isinstance(target, ast.Name) for target in statement.targets) or _works(statement.value, known)
    if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name) and not statement.orelse:
        return _works(statement.iter, known) or any(_computes(inner, known) for inner in statement.body)
    return not isinstance(statement, ast.Expr) or _works(statement.value, known)


def _works(node: ast.expr, known: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant | ast.Name):
        return False
    if isinstance(node, ast.JoinedStr):
        return any(_works(part.value, known) for part in node.values if isinstance(part, ast.FormattedValue))
    if isinstance(node, ast.Dict | ast.List | ast.Tuple):
        inner: list[Any] = [*node.keys, *node.values] if isinstance(node, ast.Dict) else list(node.elts)
        return any(_works(part, known) for part in inner if part is not None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in (_HARMLESS | known):
        return any(_works(part, known) for part in [*node.args, *(keyword.value for keyword in node.keywords)])
    return True


def _substituted(
    tree: ast.Module, team: frozenset[str], returned: Mapping[str, Sequence[str]]
) -> tuple[ast.Module, str]:
    """The program with calls of the team replaced by what they returned, and the first call that could not be."""
    left: list[str] = []
    at: dict[str, int] = {}
    places = Counter(_name(call) for call in _calls(tree))

    class Replace(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            name = _name(node)
            if name in FINISH:
                given = node.args or [keyword.value for keyword in node.keywords]
                return ast.copy_location(ast.Call(ast.Name("print", ast.Load()), given, []), node)
            if name not in team:
                return node
            texts, index = returned.get(name, ()), at.get(name, 0)
            at[name] = index + 1
            # In a loop or a function one place in the program makes several calls, on a branch it may make none.
            if len(texts) != places[name] or len(texts[index]) > _LONGEST_LITERAL:
                left.append(name)
                return node
            return ast.copy_location(ast.Constant(texts[index]), node)

    fresh = ast.parse(ast.unparse(tree))
    changed = Replace().visit(fresh)
    # A statement that is now a bare text did nothing but call.
    bare = [one for one in changed.body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    changed.body = [statement for statement in changed.body if statement not in bare]
    return ast.fix_missing_locations(changed), left[0] if left else ""


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _set(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that are certainly set, so that their earlier values are lost."""
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets = [part for target in statement.targets for part in getattr(target, "elts", [target])]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif not isinstance(statement, ast.AugAssign | ast.Expr) and not hasattr(statement, "body"):
            names |= _defined(statement)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
    return names


def _touched(statement: ast.stmt) -> set[str]:
    """Names that a statement sets or may change: by assignment, by item or attribute, by a method, as an argument."""
    names = _defined(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return names
    for node in ast.walk(statement):
        method = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            names |= _root(node)
        elif method is not None and _CHANGING.fullmatch(method.attr):
            names |= _root(method)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value) not in _BUILTINS:
            call = node.value
            names |= _root(call.func) if isinstance(call.func, ast.Attribute) else set()
            names |= {argument.id for argument in call.args if isinstance(argument, ast.Name)}
    return names


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _reads(statement: ast.stmt) -> set[str]:
    """Names whose earlier value a statement needs."""
    nodes = list(ast.walk(statement))
    in_place = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load) or id(node) in in_place}
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store) and id(node) not in in_place}
    return read - (set() if isinstance(statement, ast.Assign) else stored) - _BUILTINS


def _wanted(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that a program needs from earlier ones."""
    known, wanted, later = set[str](), set[str](), _set(statements)
    for statement in statements:
        # A function reads names when it is called, not when it is defined.
        function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        wanted |= _reads(statement) - (later if function else known)
        known |= _set([statement])
    return wanted


def _silent(statement: ast.stmt) -> ast.stmt:
    """A carried statement prints nothing: its output was seen when it first ran."""

    class Hush(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            if not (isinstance(node.value, ast.Call) and _name(node.value) == "print"):
                return node
            changing = [argument for argument in node.value.args if any(_calls(argument))]
            return ast.Expr(ast.Tuple(changing, ast.Load())) if changing else ast.Pass()

    changed: ast.stmt = Hush().visit(ast.parse(ast.unparse(statement)).body[0])
    return ast.fix_missing_locations(changed)
