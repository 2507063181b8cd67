"""How figures are read, summed up and written: units, statistics, JSON, tables and bars."""
