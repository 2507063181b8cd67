"""Predict iterations with a virtual trainer, on any number of ranks and any network, without MPI.

settings.py   what is asked          model.py      layers with places and seconds     sweep.py   all rows
network.py    costs of messages      prices.py     seconds of collectives             table.py   rows in words
                                     scenario.py   one model on one network
"""
