"""Benchmarks of collectives against baselines, and of kernels.

The way of a call, from the command line to its row:

    cli/bench.py  bench_and_show                 flags become a Contest (contest.py)
    run.py  bench                                on each number of ranks, a world of these ranks:
      bench_here                                   a Stand (stand.py), and for each case of Contest.cases:
        point.py  measured                           who takes part (Contest.keys), and an Interleaved of them
          timing/pace.py  paced                        so many turns, until it is enough
            timing/interleaved.py  Interleaved.run       all contestants, in another order each turn
              sample                                       new data, a call, a check (data.py)
                timing/loops.py  isolated                    from a common start (timing/starts.py): the call, timed
        case.py  row_of                              Samples become a Row (machine_file.py)
      Contest.where                                what --steps and --overlap record (inside/where.py)
      judged/peers.py  against_peers               rows over the fastest call of a library
      fit.py  modelled                             rows beside what the fitted network predicts: a Report (report.py)
    shown/output.py  show_bench                  the Report as a table, or in another format

A contestant is a name; what it calls on the buffers of a case, makers/contestants.py has (``prepare``), once for each
case. What is said beside the rows is in judged/ and arrivals/; runs/ holds saved runs against each other.
"""
