/* The loop of osu_allreduce (OSU micro-benchmarks 7.4), written anew: each call is timed by itself, a barrier after
 * each is not, the first ones do not count; a mean per rank, of which mean, least and most over ranks are printed. Its
 * buffers are where those of dear-mpi bench are, so that the two differ in the loop alone.
 *
 *     osu_like BYTES...      fp32, sum, out of place
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* At the border of a page, and in huge pages from 4 MiB up: as the arrays of dear-mpi bench, which are NumPy's. */
static void *allocate(size_t nbytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, nbytes + 1))
        abort();
#ifdef MADV_HUGEPAGE
    if (nbytes >= 4 << 20)
        madvise(memory, nbytes, MADV_HUGEPAGE);
#endif
    return memory;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int number = 1; number < argc; number++) {
        long nbytes = atol(argv[number]);
        int calls = nbytes > 8192 ? 100 : 1000, skipped = calls / 10;
        int count = (int)(nbytes / (long)sizeof(float));
        float *from = allocate((size_t)count * sizeof(float)), *to = allocate((size_t)count * sizeof(float));
        memset(from, 1, (size_t)count * sizeof(float)); /* else all its pages are the one page of zeros */
        memset(to, 1, (size_t)count * sizeof(float));
        double elapsed_s = 0, least, most, sum;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int call = 0; call < calls + skipped; call++) {
            double begin = MPI_Wtime();
            MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            double end = MPI_Wtime();
            MPI_Barrier(MPI_COMM_WORLD);
            if (call >= skipped)
                elapsed_s += end - begin;
        }
        double mean_us = elapsed_s * 1e6 / calls;
        MPI_Reduce(&mean_us, &least, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        MPI_Reduce(&mean_us, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(&mean_us, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%ld %.3f %.3f %.3f\n", nbytes, sum / ranks, least, most);
        free(from);
        free(to);
    }
    MPI_Finalize();
    return 0;
}
