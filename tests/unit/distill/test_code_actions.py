"""What code agents write: which of it is computation, and how it is made to stand alone."""

from __future__ import annotations

import pytest

from coa.distill.code_actions import Workspace, without_logs

TEAM = frozenset({"search_agent", "web_search"})


def read(code: str, **returned: list[str]):  # type: ignore[no-untyped-def]
    return Workspace().read(code, TEAM, returned)


@pytest.mark.parametrize(
    ("code", "computes"),
    [
        ("print(web_search('a'))", False),
        ("r = search_agent(task='a')\nprint(f'found {r}')", False),
        ("import json\nr = web_search(query='a')", False),
        ("final_answer('330 m')", False),
        ("final_answer(r)", False),
        ("x = 3 * 4", True),
        ("for q in ['a', 'b']:\n    print(web_search(q))", False),
        ("for q in ['a', 'b']:\n    print(len(web_search(q)))", True),
        ("final_answer(round(h))", True),
        ("print(len(web_search('a')))", True),
        ("x = web_search('a').split()", True),
        ("not python at all (", True),
    ],
)
def test_calling_the_team_is_no_computation(code: str, computes: bool) -> None:
    assert read(code).computes is computes


def test_literal_arguments_are_read_and_others_are_not() -> None:
    assert read("web_search('a')").calls == (("web_search", {"text": "a"}),)
    assert read("search_agent(task='a', additional_args={'n': 1})").calls == (
        ("search_agent", {"task": "a", "additional_args": {"n": 1}}),
    )
    assert read("web_search(q)").calls == (("web_search", None),)


def test_short_results_are_written_into_the_program_and_it_runs() -> None:
    action = read("h = int(web_search('tower')) * 2\nfinal_answer(h)", web_search=["330"])
    printed: list[object] = []
    exec(action.program, {"print": printed.append})
    assert printed == [660] and action.finishes


def test_a_long_result_cannot_be_copied_into_a_program() -> None:
    action = read("n = len(web_search('tower'))", web_search=["x" * 5_000])
    assert not action.program and "web_search" in action.why


def test_definitions_of_earlier_programs_are_carried_over_once_and_only_if_needed() -> None:
    workspace = Workspace()
    workspace.read("import math\na = 2\nb = 3\nprint('noise')", TEAM, {})
    workspace.read("def area(r):\n    return math.pi * r * r\na = a + 1", TEAM, {})
    program = workspace.read("print(round(area(a)))", TEAM, {}).program
    assert program == ("import math\na = 2\ndef area(r):\n    return math.pi * r * r\na = a + 1\nprint(round(area(a)))")
    printed: list[object] = []
    exec(program, {"print": printed.append})
    assert printed == [28]  # 3.14159 * 9


def test_a_program_of_its_own_stays_as_it_was_written() -> None:
    code = "# sum of squares\ntotal = sum(n*n for n in range(4))\nprint( total )"
    assert read(code).program == code


def test_the_frame_around_printed_output_goes() -> None:
    assert without_logs("Execution logs:\n5\nLast output from code snippet:\nNone") == "5"
    assert without_logs("Execution logs:\nLast output from code snippet:\n1082") == "1082"
    report = "Execution logs:\nHere is the final answer from your managed agent 'a b':\n330 m"
    assert without_logs(report) == "330 m"
    assert without_logs("plain text") == "plain text"


def test_what_a_failed_program_did_not_get_to_is_not_carried_over() -> None:
    workspace = Workspace()
    workspace.read("a = 2", TEAM, {})
    workspace.read("b = a * 3\nc = nothing * 2\nd = 5", TEAM, {})
    workspace.failed("Code execution failed at line 'c = nothing * 2' due to: NameError")
    assert workspace.read("print(b + 1)", TEAM, {}).program == "a = 2\nb = a * 3\nprint(b + 1)"
    assert workspace.read("print(d + 1)", TEAM, {}).program == "print(d + 1)"
    workspace.read("e = 1 + 1", TEAM, {})
    workspace.failed("time-out")
    assert workspace.read("print(e + 1)", TEAM, {}).program == "print(e + 1)"


def seen(program: str, names: dict[str, object]) -> list[object]:
    printed: list[object] = []
    exec(program, {**names, "print": lambda *told: printed.extend(told)})
    return printed


@pytest.mark.parametrize(
    "programs",
    [
        ["xs = []\nxs.append(3)\nprint(xs)", "xs.append(4)\nprint(sum(xs))"],
        ["d = {}\nd['a'] = 5\nprint(d['a'] + 1)", "print(d['a'] * 2)"],
        ["t = 1\nprint(t + 0)", "t += 5\nprint(t + 0)", "t += 5\nprint(t + 0)"],
        ["t = 0\nprint(t + 1)", "for n in range(4):\n    t += n\n    print(t)", "print(t * 2)"],
        ["import random\nrandom.seed(1)\nr = random.random()\nprint(r + 0)", "print(int(r * 100))"],
        ["xs = [3, 1]\nprint(len(xs))", "print(xs.pop())", "print(len(xs))"],
        ["y = 165 * 2", "print(y)"],
        ["x = 1\nif x > 0:\n    y = x + 4\nprint(x + 0)", "print(y + 0)"],
        ["def f(n):\n    return n + k\nk = 2\nprint(f(1))", "k = 5\nprint(f(1))"],
    ],
)
def test_a_program_alone_prints_what_it_printed_after_the_ones_before_it(programs: list[str]) -> None:
    workspace, together = Workspace(), dict[str, object]()
    for code in programs:
        shown: list[object] = []
        together["print"] = lambda *told, to=shown: to.extend(told)
        exec(code, together)
        action = workspace.read(code, TEAM, {})
        assert action.computes and seen(action.program, {}) == shown


def test_a_tool_in_a_loop_is_not_replaced_by_what_one_of_its_calls_returned() -> None:
    loop = "for q in ['a', 'b']:\n    n = len(web_search(q))\n    print(n)"
    action = read(loop, web_search=["one", "twelve"])
    assert action.computes and not action.program and "web_search" in action.why


def test_a_call_that_cannot_be_copied_is_not_carried_over_either() -> None:
    workspace = Workspace()
    workspace.read("page = web_search('tower')", TEAM, {"web_search": ["x" * 5_000]})
    action = workspace.read("print(len(page))", TEAM, {})
    assert action.computes and not action.program and "web_search" in action.why


def test_handing_in_what_an_earlier_program_computed_is_no_computation() -> None:
    workspace = Workspace()
    workspace.read("y = 165 * 2", TEAM, {})
    assert not workspace.read("final_answer(y)", TEAM, {}).computes
    assert not workspace.read("print(search_agent(task=f'is {y} right?'))", TEAM, {"search_agent": ["yes"]}).computes
