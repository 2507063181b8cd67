"""What compute takes on this machine, as ``simulate`` and the tuners need it."""
