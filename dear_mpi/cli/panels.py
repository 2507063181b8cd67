"""Show a command's ``--help`` in panels."""

from typing import Any

from typer.core import TyperCommand

# Core's flags, in the order of panels. Extras' flags come last in their panel.
PANELS = {
    "Workload": "model models ranks hosts data collective collectives sizes size op placement dtype batch accumulate "
    "context iterations pieces at_once device seed",
    "How measured": "budget precision cadence start arrival steps overlap tests why",
    "Peers": "baseline at_least",
    "Compute": "forward_time backward_time update_time ranks_per_core straggler",
    "Communication": "schedule schedules fusion algorithm algorithms network update weights route wire segment "
    "segments memory device_memory link rates",
    "Optimiser": "optimizer lr decay warmup momentum weight_decay clip loss_scale",
    "Job": "threads stall_after stall_abort debug check worst",
    "Output": "save every resume profile tune timeline format json_file raw",
}
# For commands that use a flag in another meaning; these entries come first.
OWN = {"bench": {"iterations": "How measured", "warmup": "How measured", "algorithms": "Peers"}}
ORDER = list(PANELS)
PLACES = {
    name: (number, place, panel)
    for number, (panel, names) in enumerate(PANELS.items())
    for place, name in enumerate(names.split())
}
FIRST = (-1, 0, None)  # without a panel


class PanelledCommand(TyperCommand):
    """A command with panels in its help; switches show no type, and ``--help`` has no line."""

    def get_params(self, ctx: Any) -> list[Any]:
        flags: list[Any] = super().get_params(ctx)
        for flag in flags:
            flag.hidden = flag.hidden or flag.name == "help"
            flag.rich_help_panel = self.place(flag)[2]
        return sorted(map(as_switch, flags), key=self.place)

    def place(self, flag: Any) -> tuple[int, int, str | None]:
        """Return a flag's position: panel number, place in the panel, panel name."""
        number, place, panel = PLACES.get(flag.name, FIRST)
        own = OWN.get(self.name or "", {}).get(flag.name)
        if flag.name not in PLACES and flag.rich_help_panel in PANELS:  # an extra's flag
            return ORDER.index(flag.rich_help_panel), len(PLACES), flag.rich_help_panel
        return (number, place, panel) if own is None else (ORDER.index(own), -1, own)


def as_switch(flag: Any) -> Any:
    """Show a flag without a value without a type."""
    if getattr(flag, "is_flag", False):  # arguments lack the attribute
        flag.metavar = ""
    return flag
