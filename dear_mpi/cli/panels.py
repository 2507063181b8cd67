"""How ``--help`` shows the flags of a command: in panels, each with those of one subject."""

from typing import Any

from typer.core import TyperCommand

# Every flag of every command is here; what follows is the order in which the panels are shown.
PANELS = {
    "Workload": "model models ranks hosts data collective collectives sizes size op placement dtype batch accumulate "
    "context iterations pieces seconds cadence beside device seed",
    "Compute": "forward_time backward_time compute rate update_time ranks_per_core straggler jitter",
    "Communication": "schedule schedules fusion algorithm algorithms network update weights route wire segment "
    "segments segment_bytes memory device_memory link rates stall",
    "Optimiser": "optimizer lr decay warmup momentum nesterov weight_decay vector_rate beta1 beta2 epsilon damping "
    "factor_decay clip loss_scale",
    "Job": "threads other_mpi stall_after stall_abort debug check",
    "Files": "save every resume profile tune plot picture timeline json_file",
}
PLACES = {
    name: (number, place, panel)
    for number, (panel, names) in enumerate(PANELS.items())
    for place, name in enumerate(names.split())
}
FIRST = (-1, 0, None)  # for what has no panel


class PanelledCommand(TyperCommand):
    """A command whose help has panels; there a switch has no type, and ``--help`` no line."""

    def get_params(self, ctx: Any) -> list[Any]:
        flags: list[Any] = super().get_params(ctx)
        for flag in flags:
            flag.hidden = flag.hidden or flag.name == "help"
            flag.rich_help_panel = PLACES.get(flag.name, FIRST)[2]
        return sorted(map(as_switch, flags), key=lambda flag: PLACES.get(flag.name, FIRST))


def as_switch(flag: Any) -> Any:
    """A flag that takes no value is shown without a type."""
    if flag.is_flag:
        flag.metavar = ""
    return flag
