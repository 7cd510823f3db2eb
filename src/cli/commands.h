// SPDX-License-Identifier: Apache-2.0
/*
 * The subcommands: each parses its arguments (argv[0] is its name), calls the floors below and
 * prints.
 *
 * Threading: the main thread. Ownership: borrows argv. Errors: the exit status: 0 success, 1
 * failure, 2 wrong usage; the message is on standard error already.
 */
#pragma once

int cmd_serve(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_copy(int argc, char **argv);
int cmd_stats(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_attach(int argc, char **argv);
int cmd_detach(int argc, char **argv);
