"""Benchmark collectives against baselines, and time kernels.

A call's path from the command line to its row:

    cli/bench.py  bench_and_show               turns flags into a Suite (suite.py)
    run.py  bench                              runs a world for each number of ranks:
      bench_here                                 opens a Context (timing.py); for each case of Suite.cases:
        measured                                   prepares the candidates (Suite.keys) as an Interleaved
          turns.py  paced                            takes turns until the medians are known
            Interleaved.run                            runs all candidates, in another order each turn
              sample                                     fills data, calls, checks (data.py)
                timing.py  isolated                        times the call from a common start
        case.py  row_of                              turns Samples into a Row (machine_file.py)
      recorded, overlapped                         run --steps and --overlap: steps.py, overlap.py
      peers.py  against_peers                      divides times by the fastest library call's
      fit.py  modelled                             adds the fitted network's predictions: a Report
    output.py  show_bench                      prints the Report as a table (table.py) or in another format

A candidate is a name: ``prepare`` in backends.py finds its call. analysis/ interprets rows; diff.py compares runs.
"""
