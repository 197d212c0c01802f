"""``smoothcert info``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from smoothcert.cli.show import show_accuracy
from smoothcert.report.recompute import outcomes_of
from smoothcert.report.tables.savings import consensus_text, savings, savings_text
from smoothcert.store import Run, load_run
from smoothcert.types import UsageError, radius_text


def info(
    what: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="A run folder, or a model as for `certify`.")],
    against: Annotated[Path | None, "A run over the same inputs to compare samples and time with."] = None,
    trust: Annotated[bool, "Let a .yaml file of a classifier name code, model hubs and addresses."] = False,
) -> None:
    """Describe a run folder or a model; of a composed classifier, all parts.

    **Examples**

        smoothcert info demo/runs/sigma-0.25
        smoothcert info demo/models/sigma-0.25.safetensors
        smoothcert info nets.py:resnet,depth=20,weights=r20.th
        smoothcert info ensemble.yaml
        smoothcert info runs/five-consensus --against runs/five
    """
    path = Path(what)
    if not (path / "run.json").exists():
        if against is not None:
            raise UsageError(f"{what} is not a run folder, so it cannot be compared with {against}.")
        from smoothcert.compositions import open_classifier  # imports PyTorch, which runs do not need

        _print_fields(open_classifier(what, trust=trust).as_dict())
        return
    run = load_run(path)
    rows, last = len(run.table(["index"])), run.info["sessions"][-1]
    _print_fields({"run": str(path), **run.config, "rows": rows, "last session": last})
    if rows and len(run.table(["label", "predict", "radius"]).column_names) == 3:
        show_accuracy([outcomes_of(run)])
        _show_probabilities(run)
        show_savings(run, load_run(against) if against is not None else None)


def _show_probabilities(run: Run) -> None:
    table = run.table(["p_lower", "p_upper"])
    if "p_lower" in table.column_names and table["p_lower"].null_count == 0:
        levels = (0.05, 0.25, 0.5, 0.75, 0.95)
        found = np.quantile(table["p_lower"].to_numpy(), levels, method="inverted_cdf")
        shown = ", ".join(f"{level:.0%}: {radius_text(p)}" for level, p in zip(levels, found.tolist(), strict=True))
        typer.echo(f"Lower bound on p_A, quantiles over inputs: {shown}")
    if "p_upper" in table.column_names and table["p_upper"].null_count < len(table):
        typer.echo(f"Runner-up bound: {len(table) - table['p_upper'].null_count} of {len(table)} inputs")


def show_savings(run: Run, reference: Run | None = None) -> None:
    """Print what early decisions and a consensus saved, for a run that has any or is compared with another."""
    if reference is not None or _decides_early(run):
        named = {} if reference is None else {"reference": reference.name}
        typer.echo(savings_text(savings(run, reference=reference), **named))
    elif "consensus" in run.table(["consensus"]).column_names and (text := consensus_text(savings(run))):
        typer.echo(text)


def _decides_early(run: Run) -> bool:
    """Return whether the procedure of a run needs fewer samples for clear inputs than for others."""
    name = run.settings.procedure.name
    if name is None or run.settings.fixed_samples:
        return False
    from smoothcert.certify import PROCEDURES  # imports PyTorch

    return name in PROCEDURES and PROCEDURES[name].decides_early


def _print_fields(fields: dict[str, Any], indent: str = "") -> None:
    for name, value in fields.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{name}:")
            _print_fields(value, indent + "  ")
        else:
            typer.echo(f"{indent}{name}: {value}")
