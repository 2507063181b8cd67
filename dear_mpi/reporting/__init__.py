"""How figures are read, summed up and written: units, statistics, and what is on the terminal."""
