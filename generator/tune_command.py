"""The options of `lingen tune`: parse, call, print. Nothing is decided here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from lingen.errors import LingenError


def tune(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec file or a shipped spec.")],
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="bf16|fp8_channel|fp8_block", help="Expert weights.")
    ],
    tp: Annotated[int, typer.Option(metavar="N", help="Ranks that split each expert.")] = 1,
    token_counts: Annotated[
        str | None, typer.Option(metavar="N,N…", help="Rows of the table; others take the nearest.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Try no further rows after that time.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes that compile; 0: this one does.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Not tuned/lingen beside the spec."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Drop what an interrupted run has measured.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace finished tables.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Measure settings of the expert kernels on this GPU, and write tables of the fastest."""
    from lingen.emit.selection import find_specs
    from lingen.ir import lower
    from lingen.spec import load_spec
    from lingen.tuning import require_card
    from lingen.tuning.request import read_request

    path = find_specs([spec], False)[0]
    ir = lower(load_spec(path))
    request = read_request(ir, tp, dtype, token_counts)
    for option, value, least in (("--budget", budget, 0), ("--workers", workers, 0)):
        if value is not None and not value >= least:
            raise LingenError(f"{option} {value}: too small\n  expected  at least {least}")
    require_card()
    from lingen.tuning import output as printed
    from lingen.tuning.present import present_bench
    from lingen.tuning.run import Options, print_line
    from lingen.tuning.run import tune as run_tune
    from lingen.tuning.tables import entry, folder_beside

    options = Options(output or folder_beside(path), budget, restart, force)
    with present_bench(ir, request, workers) as bench:
        outcome = run_tune(request, options, bench, print_line)
    if as_json:
        print(printed.as_json(outcome))
        return
    key = request.table_key(bench.device)
    print(printed.as_text(outcome, entry(outcome.files, key, request.dtype, bench.triton)))
