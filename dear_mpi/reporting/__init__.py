"""Read, summarise and print figures: units, statistics and the terminal."""
