"""All commands, one file each. A command imports what it needs when it runs, so that help comes at once."""

from typing import Annotated

import typer

from coa.cli import distill as distilling
from coa.cli import evaluate as evaluating
from coa.cli import run as running
from coa.cli import sample as sampling
from coa.cli import teach as teaching
from coa.cli.compare import compare
from coa.cli.cost import cost
from coa.cli.demo import demo
from coa.cli.doctor import doctor
from coa.cli.export import export
from coa.cli.helping import Group, use_for
from coa.cli.index import index
from coa.cli.inspect import inspect
from coa.cli.judge import judge
from coa.cli.mcp import mcp
from coa.cli.output import echo
from coa.cli.profile import profile
from coa.cli.record import record
from coa.cli.rl import rl
from coa.cli.sandbox import sandbox
from coa.cli.scan import scan
from coa.cli.score import score
from coa.cli.serve import serve
from coa.cli.setup import setup
from coa.cli.sft import sft
from coa.cli.tools import tools
from coa.cli.view import view
from coa.cli.world import world
from coa.version import __version__

app = typer.Typer(
    name="coa",
    cls=Group,
    help="Train one language model to act like many agents, and run it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=running.Command)(running.run)
app.command(context_settings={"allow_interspersed_args": False})(record)
app.command(cls=teaching.Command)(teaching.teach)
app.command(cls=distilling.Command)(distilling.distill)
app.command()(cost)
app.command()(inspect)
app.command()(export)
app.command()(sft)
app.command(cls=sampling.Command)(sampling.sample)
app.command()(rl)
app.command("eval", cls=evaluating.Command)(evaluating.evaluate)
app.command()(score)
app.command()(compare)
app.command()(scan)
app.command()(serve)
app.command()(view)
app.command()(mcp)
app.add_typer(profile, name="profile")
app.add_typer(tools, name="tools")
app.add_typer(index, name="index")
app.add_typer(sandbox, name="sandbox")
app.add_typer(world, name="world")
app.command()(judge)
app.command()(demo)
app.command()(doctor)
app.command()(setup)

use_for(app)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"coa {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
