"""How ``--help`` shows a command: in panels."""

from typing import Any

from typer.core import TyperCommand

# Every flag of core is here; panels are shown in this order. What extras add to a panel comes last in it.
PANELS = {
    "Workload": "model models ranks hosts data collective collectives sizes size op placement dtype batch accumulate "
    "context iterations pieces at_once device seed",
    "How measured": "budget precision cadence start arrival steps overlap tests why",
    "Peers": "baseline at_least",
    "Compute": "forward_time backward_time compute rate update_time ranks_per_core straggler jitter",
    "Communication": "schedule schedules fusion algorithm algorithms network update weights route wire segment "
    "segments memory device_memory link rates",
    "Optimiser": "optimizer lr decay warmup momentum nesterov weight_decay vector_rate beta1 beta2 epsilon damping "
    "factor_decay clip loss_scale",
    "Job": "threads stall_after stall_abort debug check worst",
    "Output": "save every resume profile tune plot picture timeline format json_file raw",
}
# Of commands in which a flag means something else than in others; it comes first.
OWN = {"bench": {"iterations": "How measured", "warmup": "How measured", "algorithms": "Peers"}}
ORDER = list(PANELS)
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
            flag.rich_help_panel = self.place(flag)[2]
        return sorted(map(as_switch, flags), key=self.place)

    def place(self, flag: Any) -> tuple[int, int, str | None]:
        """Where a flag stands: the number of its panel, its place there, and the panel's name."""
        number, place, panel = PLACES.get(flag.name, FIRST)
        own = OWN.get(self.name or "", {}).get(flag.name)
        if flag.name not in PLACES and flag.rich_help_panel in PANELS:  # an extra's
            return ORDER.index(flag.rich_help_panel), len(PLACES), flag.rich_help_panel
        return (number, place, panel) if own is None else (ORDER.index(own), -1, own)


def as_switch(flag: Any) -> Any:
    """A flag that takes no value is shown without a type."""
    if getattr(flag, "is_flag", False):  # an argument has no such thing
        flag.metavar = ""
    return flag
