"""What stands out, unasked for: wrong results, traced to a step, and ranks that are late now and then."""
