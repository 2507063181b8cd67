"""Benchmarks of collectives against baselines, and of kernels.

The way of a call, from the command line to its row:

    cli/bench.py  bench_and_show               flags become a Suite (suite.py)
    run.py  bench                              on each number of ranks, a world of these ranks:
      bench_here                                 a Context (timing.py), and for each case of Suite.cases:
        measured                                   who takes part (Suite.keys), and an Interleaved of them
          turns.py  paced                            so many turns, until it is enough
            Interleaved.run                            all candidates, in another order each turn
              sample                                     new data, a call, a check (data.py)
                timing.py  isolated                        from a common start: the call, timed
        case.py  row_of                              Samples become a Row (machine_file.py)
      recorded, overlapped                         for --steps and --overlap: steps.py, overlap.py
      peers.py  against_peers                      rows over the fastest call of a library
      fit.py  modelled                             rows beside what the fitted network predicts: a Report
    output.py  show_bench                      the Report as a table (table.py), or in another format

A candidate is a name; ``prepare`` in backends.py looks up what it calls on the buffers of a case. What rows say is in
analysis/; diff.py compares saved runs.
"""
