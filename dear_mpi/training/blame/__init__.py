"""Which rank, link or layer iterations wait for: a recorded run as a graph, replayed with each at its usual speed.

Start here: blame in blamed.py. Each file needs those before it: graph (moments, and what each waits for; the replay),
threads (what each rank did), messages (what joins ranks), causes (suspects and their usual speed), chance (what noise
saves), blamed (who stands out), said (sentences), by_profile (what another run took), job
(of a run that is under way).
"""
