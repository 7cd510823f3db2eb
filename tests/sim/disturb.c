// SPDX-License-Identifier: Apache-2.0
/* What happens to the disks of a scenario while it runs. */
#include "scenario.h"

enum { PAGE_CACHE_LOOKS_MAX = 1000 };

#define SECOND_NS	   UINT64_C(1000000000)
#define STALL_NS	   (UINT64_C(300) * SECOND_NS)
#define PAGE_CACHE_LOOK_NS UINT64_C(60000)

static void shrink_now(void *arg)
{
	struct scenario_export *export = arg;
	struct scenario *scenario = export->scenario;
	uint64_t size = below(export->warm && percent(75) ? 4096 : export->size);

	/* A reply that is on its way out of the page cache cannot be completed any more. */
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		if (scenario->conns[i].export == export) {
			scenario->conns[i].client.forgive = true;
		}
	}
	/* From here on anything may be read there, if it can be read at all. */
	oracle_begin(export->oracle, ORACLE_UNDEFINED, size, export->size - size, 0, 0);
	sim_disk_resize(export->disk, size);
}

static uint64_t page_cache_bytes_so_far(const struct scenario_export *export)
{
	const struct scenario *scenario = export->scenario;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < scenario->service_count; i++) {
		bytes += engine_export_measured(scenario->services[i].engine, export->export)
				 ->page_cache_send_bytes;
	}
	return bytes;
}

/* Cuts the disk as soon as a reply is on its way out of the page cache, or at last without. */
static void shrink_under_reply(void *arg)
{
	struct scenario_export *export = arg;
	uint64_t page_cache_send_bytes = page_cache_bytes_so_far(export);

	if ((page_cache_send_bytes > export->page_cache_bytes_seen && percent(80)) ||
		++export->page_cache_looks == PAGE_CACHE_LOOKS_MAX) {
		shrink_now(export);
		return;
	}
	export->page_cache_bytes_seen = page_cache_send_bytes;
	sim_after(1 + below(PAGE_CACHE_LOOK_NS), shrink_under_reply, export);
}

/* A disk that hangs must not stop the clients of the others. */
static void stall_ends(void *arg)
{
	struct scenario_export *export = arg;
	const struct scenario *scenario = export->scenario;

	sim_disk_set_stalled(export->disk, false);
	/* Who drips takes its time. */
	for (uint32_t i = 0; i < scenario->conn_count; i++) {
		const struct conn *conn = &scenario->conns[i];

		if (!conn->gone && !conn->export->stalled && conn->fate != FATE_STALL &&
			conn->fate != FATE_DRIP) {
			model_fail("client %u waits for a disk that is not its own", i);
		}
	}
}

static void stall_begins(void *arg)
{
	struct scenario_export *export = arg;

	export->stalled = true;
	export->scenario->hangs++;
	sim_disk_set_stalled(export->disk, true);
	sim_after(STALL_NS, stall_ends, export);
}

void disturb_disk(struct scenario_export *export)
{
	uint64_t offset = below(export->size);

	if (export->warm && percent(90)) {
		export->size_may_change = true;
		sim_after(0, shrink_under_reply, export);
		return;
	}
	switch (export->sparse_giant ? 1 : export->is_flash ? 1 + below(11) : below(12)) {
	case 0:
		export->size_may_change = true;
		sim_after(below(50000000), shrink_now, export);
		break;
	case 1:
	case 2:
		sim_disk_set_bad(export->disk, offset - offset % 512, 512 * (1 + below(128)),
			percent(80), percent(60));
		break;
	case 3:
	case 4:
		/* However little there is, the clients of other disks are served meanwhile. */
		if (export->scenario->hanging_count == 0 ||
			export->scenario->hanging_count + 1 < export->scenario->export_count) {
			export->scenario->hanging_count++;
			sim_after(below(10000000), stall_begins, export);
		}
		break;
	default:
		break;
	}
}
