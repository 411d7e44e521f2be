"""The `lingen` command: parse, call, print, exit code. Nothing is decided here.

Every command imports what it needs inside its function, so that the others start fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from lingen import __version__
from lingen.errors import LingenError
from lingen.plan_command import plan
from lingen.tune_command import tune

INTERRUPTED, _BROKEN_PIPE = 130, 141
BUG = 70
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="lingen",
    help="A YAML description of a Bailing/Ling model in, a complete inference runtime out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Specs = Annotated[
    list[str] | None,
    typer.Argument(metavar="SPEC", help="Spec files, or names of shipped specs."),
]
AllSpecs = Annotated[
    bool, typer.Option("--all", help="Every spec in ./specs, or every shipped one.")
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the packages.")]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="NAME", help="Only this target; a spec given by name need not list it."
    ),
]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"lingen {__version__}")
        raise typer.Exit()


Extends = Annotated[
    str | None, typer.Option("--extends", metavar="FAMILY", help="What the spec extends.")
]
SpecOutput = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE|-", help="Not specs/NAME.yaml; - prints it."),
]
Replace = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


@app.callback()
def _lingen(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A YAML description of a Bailing/Ling model in, a complete inference runtime out."""


@app.command()
def build(
    specs: Specs = None,
    all_specs: AllSpecs = False,
    out: Out = Path("generated"),
    target: TargetName = None,
    force: Annotated[bool, typer.Option("--force", help="Drop hand edits.")] = False,
) -> None:
    """Render packages and write them; hand edits are refused."""
    from lingen.emit.build import Request
    from lingen.emit.build import build as run_build

    for result in run_build(Request(tuple(specs or ()), all_specs, out, target), force):
        print(f"{result.status:<10}{result.path}")


@app.command()
def check(
    specs: Specs = None,
    all_specs: AllSpecs = False,
    out: Out = Path("generated"),
    target: TargetName = None,
    form: Annotated[
        str, typer.Option("--format", metavar="text|github|json", help="How to print.")
    ] = "text",
) -> None:
    """Compare packages on disk with what build would write."""
    from lingen.emit.build import Request
    from lingen.emit.build import check as run_check
    from lingen.emit.check_output import FORMATS

    if form not in FORMATS:
        raise LingenError(f"--format {form}: unknown format\n  expected  {', '.join(FORMATS)}")
    report = run_check(Request(tuple(specs or ()), all_specs, out, target))
    for failure in report.failures:
        print(failure, file=sys.stderr)
    print(FORMATS[form](report, _wants_color()))
    raise typer.Exit(report.exit_code)


@app.command()
def verify(
    cases: Annotated[
        list[Path], typer.Argument(metavar="CASE_DIR…", help="Folders of recorded cases.")
    ],
    backend: Annotated[
        str, typer.Option("--backend", metavar="seg_la|minimax", help="Lightning backend.")
    ] = "seg_la",
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda", help="Where to run.")
    ] = "cpu",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="float32", help="Weights, activations and caches.")
    ] = "float32",
    tp: Annotated[
        int, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks, one process each.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Run a generated package on recorded inputs; exit 1 if a tensor is outside its tolerance."""
    from lingen.verify import require_runtime

    require_runtime()
    from lingen.verify import output
    from lingen.verify.verifier import verify_cases

    results, failures = verify_cases(cases, backend=backend, device=device, dtype=dtype, tp=tp)
    if results:
        print(output.as_json(results) if as_json else output.as_text(results))
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        raise typer.Exit(failures[0].exit_code)
    raise typer.Exit(0 if all(result.passed for result in results) else 1)


@app.command("import")
def import_(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="A published config.json.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the model.")
    ] = None,
    extends: Extends = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A value that lies over the file's."),
    ] = None,
    output: SpecOutput = None,
    force: Replace = False,
) -> None:
    """Make a spec from a config.json; every key is used, listed as ignored, or refused."""
    from lingen.hf import import_to_file
    from lingen.hf.output import print_imported

    imported, place = import_to_file(
        config, name=name, extends=extends, overrides=settings or (), output=output, force=force
    )
    print_imported(imported, place)


@app.command()
def explain(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec file or a shipped spec.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="The merged spec, each value with its file and line.")
    ] = False,
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE|-", help="A picture; - prints it.")
    ] = None,
) -> None:
    """Layers, parameters, bytes per token and request, and where each value comes from."""
    from lingen import report
    from lingen.emit.selection import find_specs
    from lingen.spec import load_spec

    if svg is not None and (as_json or resolved):
        raise LingenError("--svg stands alone\n  fix       leave out --json and --resolved")
    loaded = load_spec(find_specs([spec], False)[0])
    if svg is not None:
        from lingen.pictures import draw

        draw(loaded, svg)
        return
    print(report.explain(loaded, resolved, as_json, _wants_color()), end="")


app.command()(plan)
app.command()(tune)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A spec file or a shipped spec.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
    stat: Annotated[
        bool, typer.Option("--stat", help="A line per change, and no generated code.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Compare two models: spec values, what follows from them, generated code; exit 1 if any."""
    from lingen import diff as model_diff

    found = model_diff.diff_models(a, b)
    print(model_diff.as_json(found) if as_json else model_diff.as_text(found, stat, _wants_color()))
    raise typer.Exit(0 if found.is_empty else 1)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.")],
    extends: Extends = None,
    output: SpecOutput = None,
    force: Replace = False,
) -> None:
    """Write a commented starter spec: what the family leaves open, ready to be filled in."""
    from lingen.starter import start_spec

    start_spec(name, extends, output, force)


@app.command()
def trace(
    place: Annotated[
        str, typer.Argument(metavar="FILE[:LINE]", help="A generated file, or one line of it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell which template line and which spec keys made a line of a generated file."""
    from lingen.emit import trace as tracing

    found = tracing.trace(place)
    print(tracing.as_json(found) if as_json else tracing.as_text(found))


def main() -> NoReturn:
    """Entry point of the console command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 fine, 1 a difference, 2 wrong input, 3 the environment lacks something, 70 a bug in lingen,
    130 interrupted. Messages go to stderr; a traceback is printed for 70 alone.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        # Not app(): its own handling turns a broken pipe into 1, which means a difference here.
        command = typer.main.get_command(app)
        with command.make_context("lingen", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as ending:
        return ending.exit_code
    except LingenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except _UsageError as error:
        error.show()
        return 2
    except (typer.Abort, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has left: nothing more to say, not at interpreter exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception:
        import traceback

        print(f"This is a bug in lingen.\n{traceback.format_exc()}", end="", file=sys.stderr)
        return BUG


def _wants_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


if __name__ == "__main__":
    main()
