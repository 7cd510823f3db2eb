"""Parts shared by the benchmarks: the disk, the servers, the measuring and the report."""
