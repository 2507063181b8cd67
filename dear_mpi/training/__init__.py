"""How a model is trained on many ranks: buckets, the engine, schedules, the trainer, and the runs of a command."""
