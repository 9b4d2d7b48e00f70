"""`coa index`: a local search index over your own documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coa.cli.output import echo, echo_json
from coa.report import plural

index = typer.Typer(help="Build a local search index, or search one.", no_args_is_help=True)


@index.command()
def build(
    source: Annotated[
        list[Path], typer.Argument(help="JSONL (.gz), Parquet, or a folder of HTML, Markdown and text. Repeatable.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the index.")],
    language: Annotated[str, typer.Option(help="Language for stemming; none switches it off.")] = "english",
    passage_words: Annotated[
        int, typer.Option(min=0, help="Number of words per passage into which texts are cut; 0 cuts nothing.")
    ] = 150,
    base_url: Annotated[str, typer.Option(help="URL prefix for the pages of a folder.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Build an index. Rows need a text; id, title, url and date are used if present."""
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.tools.index import Sources
    from coa.tools.index import build as build_index

    show_warnings()
    sources = Sources(source, base_url=base_url)
    manifest = build_index(
        sources, out, language=language, passage_words=passage_words, replace=force, progress=terminal_progress()
    )
    if as_json:
        echo_json(manifest.model_dump_json(indent=2))
        return
    size = f"{plural(manifest.passages, 'passage')} of {plural(manifest.documents, 'document')}"
    echo(f"{out}: {size} in {manifest.seconds:.1f} s")
    for reason, count in manifest.left_out.items():
        echo(f"left out {count:,}: {reason}", err=True)
    echo(f'try it: coa index search {out} "a question"')


@index.command()
def search(
    folder: Annotated[Path, typer.Argument(help="Folder of the index.")],
    query: Annotated[str, typer.Argument(help="Words to search for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of passages to show.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Search an index."""
    from dataclasses import asdict

    from coa.tools.index import Index, snippet

    opened = Index(folder)
    hits = opened.search(query, k)
    if as_json:
        import orjson

        for hit in hits:
            echo_json(orjson.dumps({**asdict(hit.passage), "score": hit.score}))
        return
    for number, hit in enumerate(hits, 1):
        passage = hit.passage
        heading = f"{number}. {passage.title or passage.id}  [{passage.id}]  {hit.score:.2f}  {passage.url}"
        echo(heading)
        echo(f"   {snippet(passage.text, opened.terms(query))}")
    if not hits:
        echo("nothing found", err=True)
