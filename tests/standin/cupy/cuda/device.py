"""Devices: as many as STANDIN_DEVICES says, all of them host memory."""

from cupy.cuda import runtime
from cupy.storage import here


class Device:
    """A device; current per host thread, and 0 in a new one as with CUDA."""

    def __init__(self, device=None):
        self.id = here.device if device is None else int(device)
        self.previous = []

    def use(self):
        runtime.setDevice(self.id)
        return self

    def __enter__(self):
        self.previous.append((here.device, here.chosen))
        return self.use()

    def __exit__(self, *error):
        here.device, here.chosen = self.previous.pop()

    def __int__(self):
        return self.id

    __index__ = __int__

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def synchronize(self):
        with self:
            runtime.deviceSynchronize()

    @property
    def pci_bus_id(self):
        return runtime.deviceGetPCIBusId(self.id)
