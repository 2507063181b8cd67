"""How ``--help`` shows the flags of a command: in panels, each with those of one subject."""

from typing import Any

from typer.core import TyperCommand

# Every flag of every command is here; what follows is the order in which the panels are shown.
PANELS = {
    "Workload": "model models ranks hosts data collectives sizes size op placement dtype batch accumulate context "
    "iterations seconds cadence beside device seed",
    "Compute": "forward_time backward_time compute rate update_time straggler jitter",
    "Communication": "schedule schedules fusion algorithm algorithms network update route wire segment segments "
    "segment_bytes memory device_memory link stall",
    "Optimiser": "optimizer lr decay warmup momentum nesterov weight_decay beta1 beta2 epsilon clip loss_scale",
    "Job": "threads other_mpi stall_after stall_abort debug check",
    "Files": "save every resume profile tune plot picture timeline json_file",
}
PLACE = {name: (panel, place) for panel, names in PANELS.items() for place, name in enumerate(names.split())}
ORDER = list(PANELS)


class PanelledCommand(TyperCommand):
    """A command whose help has panels; there a switch has no type, and ``--help`` no line."""

    def get_params(self, ctx: Any) -> list[Any]:
        return sorted(map(panelled, super().get_params(ctx)), key=place)


def panelled(flag: Any) -> Any:
    """A flag as it is shown."""
    flag.hidden = flag.hidden or flag.name == "help"
    flag.rich_help_panel = PLACE[flag.name][0] if flag.name in PLACE else None
    return as_switch(flag)


def as_switch(flag: Any) -> Any:
    """A flag that takes no value is shown without a type."""
    if flag.is_flag:
        flag.metavar = ""
    return flag


def place(flag: Any) -> tuple[int, int]:
    """Where it is shown: what has no panel comes first."""
    panel, number = PLACE.get(flag.name, ("", 0))
    return (ORDER.index(panel) if panel else -1), number
