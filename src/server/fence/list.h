// SPDX-License-Identifier: Apache-2.0
/*
 * The file with the fenced nodes, DIR/fenced. It contains the rules of each node, so that a node
 * stays fenced even if the configuration changes.
 *
 *   gmblock-fenced 1
 *   node alpha 1764428490        name, and the time of the fence
 *   when psk:616c706861          a rule: conditions, and their canonical bytes in hexadecimal
 *   end 1 5a3c0f12               number of nodes, and the CRC-32C of all bytes before this line
 *
 * A file that is cut, changed or unreadable is not the result of a crash (state_folder.h), and is
 * an error.
 *
 * Threading: no state; the caller serializes the calls for a folder. Ownership: the caller owns a
 * list. Errors: a negative errno and a message that names the file.
 */
#pragma once

#include "engine/fence.h"
#include "server/config/config.h"
#include "server/state_folder.h"

/* A node and its rules, which have no condition ACCESS_NODE. */
struct fence_record {
	char name[FENCE_NAME_BYTES];
	uint64_t since_s; /* seconds since 1970 */
	struct server_access rules;
};

struct fence_list {
	struct fence_record *records;
	uint32_t count;
};

extern const char fence_list_file[]; /* the file's name in the folder */

enum { FENCE_FILE_BYTES_MAX = 16 << 20 }; /* at most STATE_FILE_BYTES_MAX */

/* Parses the content of a file. */
GMB_MUST_CHECK int fence_list_parse(
	const char *text, size_t bytes, struct fence_list *list, struct error *error);
/* Formats a list. The caller frees *text_out. -ENOMEM. -EFBIG: the file would be longer than
 * FENCE_FILE_BYTES_MAX. */
GMB_MUST_CHECK int fence_list_format(
	const struct fence_list *list, char **text_out, size_t *bytes_out, struct error *error);
void fence_list_fini(struct fence_list *list);

/* Reads the file in the folder. A file that does not exist is an empty list. */
GMB_MUST_CHECK int fence_list_read(
	const struct state_folder *folder, struct fence_list *list, struct error *error);

bool fence_rules_has(const struct server_access *access, const struct access_rule *rule);
/* Adds copies of the rules that `into` does not contain. name: only rules of this node, without the
 * condition ACCESS_NODE; NULL: all rules, with it. Sets *grown, unless grown is NULL, if a rule was
 * added. -ENOMEM. */
GMB_MUST_CHECK int fence_rules_add(struct server_access *into, const struct server_access *from,
	const char *name, bool *grown);
