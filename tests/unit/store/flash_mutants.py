#!/usr/bin/python3
"""Breaks the rules of the flash store that keep data over a crash: the tests must notice each.

    flash_mutants.py write OUTPUT... -- SOURCE...   sources in which FLASH_MUTANT=NAME breaks a rule
    flash_mutants.py run DAMAGE ZONES CACHE SNAPSHOTS CRASH BITS CHECKPOINT SMALL MOVE   the tests made of them, for each rule until one fails

A broken rule may keep a test from ending. It is ended by its processor time, of which it needs as much on a
busy machine: the simulated one never waits.
"""
import os
import resource
import subprocess
import sys

CRASHES = "2000"
# Where the crash points of snapshots begin, in two runs: no run of this length finds every mutant.
SNAPSHOTS_SEEDS = {"snapshots": "1", "more-snapshots": "601"}
CPU_SECONDS_MAX = 300  # of one test, of which the longest needs ten

# name: (file, an expression that is there once, what is there instead); or text, and what replaces
# it, where MUTANT is true when the rule is to be broken.
MUTANTS = {
    "copy-over-newer": ("map.c", "old != entry->source", "false"),
    "replayed-copy-over-newer": (
        "recover.c", "flash_kind_is_copy(entry->kind) && le32toh(at->block) != entry->source", "false"),
    "torn-record-replayed": ("recover.c", "replay->at.seq >= replay->durable", "false"),
    "log-reused-before-checkpoint": ("recover.c", "seen[i].in_log ||", "(seen[i].in_log && !MUTANT) ||"),
    "recovered-without-sync": ("recover.c", "flash->is_read_only ? 0 : make_durable(flash)", "0"),
    "other-run-believed": (
        "recover.c", "record->seq >> FLASH_SEQ_SHIFT == replay->at.seq >> FLASH_SEQ_SHIFT", "true"),
    "later-records-ignored": (
        "recover.c", "if (flash_record_look(header", "if (!MUTANT && flash_record_look(header"),
    "bad-block-ends-the-log": (
        "recover.c", "result < 0 && ahead_count > count", "!MUTANT && result < 0 && ahead_count > count"),
    "unreadable-end-accepted": (
        "recover.c", "flash->damage.lost_error = result;", "if (!MUTANT) { flash->damage.lost_error = result; }"),
    "look-ahead-forgotten": ("recover.c", "replay->count = 0;", "replay->count = MUTANT ? replay->count : 0;"),
    "durable-write-not-durable": (
        "log.c", "flash->log.durable_seq < flash->log.written_seq", "false"),
    "takes-effect-out-of-order": ("log.c", "!buffer->is_written", "false"),
    "nothing-told": ("log.c", "log->untold_blocks >= UNTOLD_BLOCKS", "false"),
    "nothing-told-by-a-checkpoint": (
        "checkpoint.c", "flash_log_tell(flash);", "if (!MUTANT) { flash_log_tell(flash); }"),
    "slots-free-before-the-position": (
        "log.c", "flash_cache_follow(flash);\n\t\trecord_apply(flash, buffer);",
        "if (MUTANT) { record_apply(flash, buffer); }\nflash_cache_follow(flash);\nif (!MUTANT) { record_apply(flash, buffer); }"),
    "in-flight-taken-as-durable": ("io.c", "flash->log.written_seq", "flash->log.head.seq"),
    "flush-without-sync": ("flash.c", "flash->log.durable_seq == flash->log.written_seq", "true"),
    "erased-before-anchor": (
        "checkpoint.c", "== FLASH_CHECKPOINT_SYNC) {",
        "== FLASH_CHECKPOINT_SYNC) {\nif (MUTANT) { free_segments(flash); }"),
    "anchor-before-nodes": (
        "checkpoint.c", "checkpoint->is_waiting = true;\n\t\tflash_sync_checkpoint(flash);",
        "checkpoint->is_waiting = !MUTANT;\n"
        "if (MUTANT) { checkpoint_set_state(checkpoint, FLASH_CHECKPOINT_ANCHOR_FIRST); }\n"
        "else { flash_sync_checkpoint(flash); }"),
    "old-page-changed-first": (
        "map.c", "!flash_checkpoint_append(flash, slot)",
        "(MUTANT ? (slot->state = FLASH_SLOT_WRITTEN, false) : !flash_checkpoint_append(flash, slot))"),
    "step-of-a-page-of-zeroes": (
        "checkpoint.c", "*blocks -= slot->state == FLASH_SLOT_WRITTEN",
        "*blocks -= MUTANT || slot->state == FLASH_SLOT_WRITTEN"),
    "refused-flush-is-final": (
        "cache.c", "part->flags |= STORE_NOTHING_LOST;", "if (!MUTANT) { part->flags |= STORE_NOTHING_LOST; }"),
    "erased-what-became-empty-meanwhile": ("checkpoint.c", "was_empty && is_empty", "is_empty"),
    "collected-what-was-filled-meanwhile": (
        "checkpoint.c", "(segment->was_closed || !has_changes)", "(segment->was_closed || !has_changes || MUTANT)"),
    "counts-of-the-end": (
        "checkpoint.c", "? segment->begin_valid",
        "? MUTANT ? flash->table.segments[first + i].valid : segment->begin_valid"),
    "changes-meanwhile-not-replayed": (
        "checkpoint.c", "return has_more ?", "return has_more && !MUTANT ?"),
    "detours-meanwhile-dropped": (
        "checkpoint.c", "flash_detours_drop(&flash->anchor);",
        "if (MUTANT) { flash->anchor.detour_count = 0; }\nflash_detours_drop(&flash->anchor);"),
    "first-records-moved-without-detour": (
        "checkpoint.c", "flash->checkpoint.begin : flash->log.head",
        "flash->checkpoint.begin : MUTANT ? flash->checkpoint.begin : flash->log.head"),
    "first-checkpoint-lets-changes-through": (
        "change.c", "flash_checkpoint_blocks(flash) ||", "(!MUTANT && flash_checkpoint_blocks(flash)) ||"),
    "snapshot-has-counts-of-the-end": (
        "snapshot.c", "flash->segments[i].begin_valid", "flash->table.segments[i].valid"),
    "good-anchor-first": (
        "io.c", "is_first ? 1 - flash->good_anchor : flash->good_anchor",
        "is_first ? flash->good_anchor : 1 - flash->good_anchor"),
    "both-anchors-at-once": (
        "checkpoint.c", "flash_sync_checkpoint(flash);\n}",
        "if (MUTANT) { flash_checkpoint_synced(flash, 0); }\n"
        "else { flash_sync_checkpoint(flash); }\n}"),
    "free-before-checkpoint": (
        "gc.c", "flash->segments[flash->gc->victim].readers--;",
        "struct flash_segment *segment = &flash->segments[flash->gc->victim];\n"
        "segment->readers--;\n"
        "if (MUTANT && flash->table.segments[flash->gc->victim].valid == 0 &&\n"
        "segment->nodes == 0 && segment->readers == 0) {\n"
        "gc_set_state(&flash->table, flash->gc->victim, GC_FREE); }"),
    "quiet-start-writes": (
        "flash.c", "if (flash->start->is_quiet) {", "if (flash->start->is_quiet && !MUTANT) {"),
    "anchors-not-read-again": (
        "flash.c", "flash->start->is_quiet ? look_again(flash, &flash->start->error) : 0", "0"),
    "changing-memory-not-copied": ("change.c", "mem_may(part->memory, MEM_STABLE)", "true"),
    "memory-held-after-an-error": (
        "change.c", "flash_log_add_part(flash, part);\n}",
        "if (MUTANT) { flash_finish(part, error); }\n"
        "else { flash_log_add_part(flash, part); }\n}"),
    "segment-of-a-snapshot-erased": (
        "checkpoint.c", "flash_segment_is_empty(flash, i)", "entry->valid == 0 && segment->nodes == 0"),
    "snapshot-erased-before-anchor": (
        "checkpoint.c", "flash_snapshots_encode(flash);",
        "flash_snapshots_encode(flash);\nif (MUTANT) { flash_snapshots_checkpointed(flash, 0); free_segments(flash); }"),
    "snapshot-follows-the-disk": (
        "snapshot.c", "snapshot->state == FLASH_SNAPSHOT_CREATING ? 0 : i + 1", "0"),
    "snapshot-not-in-the-anchor": (
        "snapshot.c", "flash->anchor.snapshots[i] = snapshot->about;",
        "if (!MUTANT) { flash->anchor.snapshots[i] = snapshot->about; }"),
    "snapshot-of-several-moments": (
        "snapshot.c", "snapshots->holds = true;\n\tflash_cache_want_written(flash);",
        "snapshots->holds = true;\nif (!MUTANT) { flash_cache_want_written(flash); }"),
    "snapshot-of-a-job-stays": (
        "snapshot.c", "snapshot->state == FLASH_SNAPSHOT_LIVE && snapshot->about.is_temporary", "false"),
    "zone-written-out-of-order": ("zone.c", "zones->writing != NULL", "false"),
    "zone-stays-active": ("zone.c", "zones->blocks < zones->capacity", "false"),
    "zone-of-torn-anchor-goes-on": ("zone.c", "zone.written % FLASH_BLOCK_BYTES != 0", "false"),
    "taken-zone-stays-active": (
        "zone.c", "zones->segment = i;", "zones->segment = MUTANT ? FLASH_NO_SEGMENT : i;"),
    "taken-zone-finished-at-once": (
        "flash.c", "flash_zones_take(flash,", "(MUTANT ? flash_zones_prepare : flash_zones_take)(flash,"),
    "anchor-places-not-read-again": (
        "flash.c", "now->zones.anchor_blocks,",
        "MUTANT ? flash->zones.anchor_blocks : now->zones.anchor_blocks,"),
    "free-zone-not-reset": (
        "zone.c", "return disk_zones_reset(flash->erase.fd, offset, flash->zones.bytes);",
        "return MUTANT ? 0 : disk_zones_reset(flash->erase.fd, offset, flash->zones.bytes);"),
    "read-behind-what-is-written": (
        "zone.c", "there = written > at ? MIN(count, written - at) : 0;",
        "if (!MUTANT) { there = written > at ? MIN(count, written - at) : 0; }"),
    "slot-header-before-data": (
        "cache.c", "memcpy(bytes, data, FLASH_BLOCK_BYTES);\n\tentry->lpn",
        "if (MUTANT) { entry->lpn = htole64(page.lpn); entry->counter = htole64(page.counter);\n"
        "entry->stamp = htole64(page.stamp);\n"
        "commit(cache, slot, FLASH_CACHE_DIRTY << 32 | flash_cache_crc(entry, data)); }\n"
        "memcpy(bytes, data, FLASH_BLOCK_BYTES);\n\tentry->lpn"),
    "slot-freed-before-direct-write": (
        "cache.c", "cache->slot_count > 0 && lpn < end; lpn++) {\n\t\tuint32_t slot = flash_cache_find(flash, lpn);",
        "cache->slot_count > 0 && lpn < end; lpn++) {\n\t\tuint32_t slot = flash_cache_find(flash, lpn);\n"
        "if (MUTANT && slot != CACHE_NO_SLOT) { cache_release(cache, slot); continue; }"),
    "superseded-page-evicted": ("cache.c", "slot != CACHE_NO_SLOT && is_dirty(cache, slot)) {\n\t\t\torder",
        "!MUTANT && slot != CACHE_NO_SLOT && is_dirty(cache, slot)) {\n\t\t\torder"),
    "clean-before-written": (
        "cache.c", "set_writing(flash, slot);\n\t}", "set_writing(flash, slot);\n"
        "if (MUTANT) { commit(cache, slot, 0); }\n\t}"),
    "slot-used-while-written": ("cache.c", "found->is_superseded ? 0 : found->writing", "0"),
    "flush-forgets-dirty-slots": (
        "flash.c", "flash_cache_is_dirty(&flash->cache)", "false"),
    "flush-forgets-changed-pages": ("cache.c", "since = cache->slots[old].since;",
        "since = MUTANT ? page->counter : cache->slots[old].since;"),
    "crc-of-slot-not-checked": (
        "format.c", "(uint32_t)commit == flash_cache_crc(entry, page)", "true"),
    "old-boot-accepted": (
        "cache_file.c", "memcmp(head->boot_id, boot_id, sizeof(boot_id)) == 0", "true"),
    "other-store-accepted": (
        "cache_file.c", "memcmp(head->uuid, anchor->uuid, sizeof(head->uuid)) == 0", "true"),
    "later-pages-accepted": ("cache_file.c", "head->followed > end && cache->found_count > 0", "false"),
    "copy-takes-the-file": ("cache_file.c", "!is_of_disk(&search->head, search->disk)", "false"),
    "follows-what-cannot-be-found": ("cache_file.c", "cache->is_recorded && cache->slot_count > 0",
        "cache->slot_count > 0"),
    "flush-forgets-superseded": ("cache.c", "cache->slots[slot].is_superseded = true;\n\t\t\tset_writing",
        "cache->slots[slot].is_superseded = true;\n\t\t\tif (!MUTANT) set_writing"),
    "page-over-newer-record": ("cache.c", "cache->slots[slot].stamp <= seq", "false"),
    "stamp-of-the-record-before": ("cache.c", "if (is_being_filled(flash, lpn))",
        "if (!MUTANT && is_being_filled(flash, lpn))"),
    "loss-not-told": ("cache_file.c", "flash->anchor.cache_losses = make_random();",
        "flash->anchor.cache_losses = MUTANT ? flash->anchor.cache_losses : make_random();"),
    "anchor-forgets-cache": ("checkpoint.c", "flash_cache_tag(flash)", "0"),
    "second-copy-not-used": ("tree.c", "flash_twin_read(flash, at, entries)", "-EUCLEAN"),
    "lost-nodes-are-zeroes": (
        "tree.c", "tree->levels[level - 1][i] = nothing;",
        "tree->levels[level - 1][i] = MUTANT ? (struct flash_entry){ 0 } : nothing;"),
    "changes-behind-an-image-forgotten": (
        "rebuild.c", "record->seq >= rebuild->lost[lost].whole_seq", "false"),
    "images-behind-the-checkpoint-forgotten": (
        "rebuild.c", "record->nodes_at > 0 && record->nodes_at <= flash->anchor.next.seq", "false"),
    "cut-off-records-taken": ("rebuild.c", "seq >= rebuild->runs[i].end", "false"),
    "damaged-image-taken": (
        "rebuild.c", "flash_node_read(rebuild->flash, at, &node) == 0", "flash_node_read(rebuild->flash, at, &node) < 1"),
    "detour-not-followed": ("recover.c", "flash_detour_follow(&replay->flash->anchor, &replay->at);",
        "if (!MUTANT) { flash_detour_follow(&replay->flash->anchor, &replay->at); }"),
    "moved-without-anchor": ("move.c", "if (!is_anchored(flash)) {", "if (MUTANT || !is_anchored(flash)) {"),
    "old-one-of-two-records": ("rebuild.c", "one->moves > other->moves", "one->moves < other->moves"),
    "page-cache-believed": ("recover.c", "is_doubtful(replay) && (all || !disk_has(disk, &replay->at))", "false"),
    "page-cache-believed-in-direct-mode": (
        "recover.c", "write_log_again(&replay, &disk, tries > 0)",
        "flash->memory_align > 1 ? 0 : write_log_again(&replay, &disk, tries > 0)"),
    "written-again-from-too-late-a-record": ("recover.c", "replay->durable >= next.seq", "true"),
    "written-again-what-the-disk-has": ("recover.c", "replay_whole(disk) != NULL", "false"),
    "failed-sync-of-a-start-believed": (
        "recover.c", "result ?: disk_sync(flash->fd)", "disk_sync(flash->fd) > 0 ? 1 : result"),
    "anchor-in-page-cache-believed": (
        "flash.c", "flash_anchors_read(flash, flash->disk_fd, error)", "flash_anchors_read(flash, flash->fd, error)"),
    "direct-reads-of-the-page-cache-believed": (
        "flash.c", "!info.direct_bypasses_cache", "info.direct_offset_align == 0"),
    "anchor-stays-in-page-cache": (
        "flash.c", "disk_drop_cache(flash->fd, 0, FLASH_ANCHORS * FLASH_BLOCK_BYTES);",
        "if (!MUTANT) { disk_drop_cache(flash->fd, 0, FLASH_ANCHORS * FLASH_BLOCK_BYTES); }"),
    "given-up-is-read-in-page-cache": ("recover.c", "replay.reads_disk = true;", "replay.reads_disk = !MUTANT;"),
    "given-up-stays-in-page-cache": (
        "recover.c", "disk_drop_cache(flash->fd, 0, bytes);", "if (!MUTANT) { disk_drop_cache(flash->fd, 0, bytes); }"),
    "given-up-is-not-counted": (
        "recover.c", "MAX(replay->durable, flash->damage.dropped_end)", "replay->durable"),
    "accepted-loss-keeps-the-epoch": (
        "recover.c", "flash_cache_count_loss(flash);", "if (!MUTANT) { flash_cache_count_loss(flash); }"),
    "redo-from-what-is-written": (
        "redo.c", "redo->at = flash->log.durable_at;",
        "redo->at = MUTANT ? flash->log.written_at : flash->log.durable_at;"),
    "bad-anchor-tried-for-ever": ("io.c", "|| !anchors_again(flash)", "|| !anchors_again(flash) || MUTANT"),
    "redo-leaves-out-what-is-in-flight": ("redo.c", "flash->log.writing_count > 0", "false"),
    "durable-write-in-two-records": ("change.c", "(part->flags & STORE_FUA) != 0", "false"),
}
# The test that is tried first, where that is not the crash test: it finds most within its first crashes, and
# takes twenty times as long to find nothing. The others are tried when it finds nothing.
FOUND_BY = {
    "damage": [
        "later-records-ignored", "bad-block-ends-the-log", "unreadable-end-accepted", "nothing-told",
        "good-anchor-first", "quiet-start-writes",
        "anchors-not-read-again", "changing-memory-not-copied", "memory-held-after-an-error",
        "segment-of-a-snapshot-erased", "snapshot-follows-the-disk", "snapshot-not-in-the-anchor"],
    "zones": ["taken-zone-stays-active", "taken-zone-finished-at-once", "anchor-places-not-read-again"],
    "cache": [
        "slot-header-before-data", "crc-of-slot-not-checked", "old-boot-accepted", "other-store-accepted",
        "later-pages-accepted", "flush-forgets-superseded", "page-over-newer-record",
        "slots-free-before-the-position"],
    "snapshots": [
        "snapshot-of-several-moments", "snapshot-of-a-job-stays", "old-page-changed-first", "counts-of-the-end",
        "snapshot-has-counts-of-the-end"],
    "more-snapshots": ["first-checkpoint-lets-changes-through"],
    "bits": [
        "second-copy-not-used", "lost-nodes-are-zeroes", "changes-behind-an-image-forgotten", "damaged-image-taken",
        "old-one-of-two-records", "cut-off-records-taken"],
    "checkpoint": [
        "erased-what-became-empty-meanwhile", "collected-what-was-filled-meanwhile",
        "images-behind-the-checkpoint-forgotten", "detours-meanwhile-dropped", "changes-meanwhile-not-replayed",
        "first-records-moved-without-detour", "nothing-told-by-a-checkpoint"],
    "small": ["step-of-a-page-of-zeroes", "refused-flush-is-final"],
    "move": [
        "page-cache-believed", "page-cache-believed-in-direct-mode", "written-again-from-too-late-a-record",
        "written-again-what-the-disk-has", "failed-sync-of-a-start-believed", "anchor-in-page-cache-believed",
        "direct-reads-of-the-page-cache-believed", "anchor-stays-in-page-cache", "bad-anchor-tried-for-ever", "redo-from-what-is-written",
        "redo-leaves-out-what-is-in-flight", "given-up-is-read-in-page-cache", "given-up-stays-in-page-cache",
        "given-up-is-not-counted", "accepted-loss-keeps-the-epoch"],
}
BEGIN = """#include <stdlib.h>
#include <string.h>
static int is_mutant(const char *name)
{
	const char *chosen = getenv("FLASH_MUTANT");
	return chosen != NULL && strcmp(chosen, name) == 0;
}
"""


def switched(name, old, new):
    """C that does the one or the other."""
    if "MUTANT" not in new:
        new = f"(MUTANT ? ({new}) : ({old}))"
    return new.replace("MUTANT", f'is_mutant("{name}")')


def write(outputs, sources):
    for output, source in zip(outputs, sources, strict=True):
        with open(source, encoding="utf-8") as file:
            text = file.read()
        for name, (place, old, new) in MUTANTS.items():
            if place == os.path.basename(source):
                if text.count(old) != 1:
                    sys.exit(f"{source}: mutant {name}: '{old}' is there {text.count(old)} times")
                text = text.replace(old, switched(name, old, new))
        with open(output, "w", encoding="utf-8") as file:
            file.write(BEGIN + text)


def limit_time():
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def commands(programs, crashes):
    """The tests by name, in the order in which they are tried."""
    named = {os.path.basename(program).rpartition("_")[2]: program for program in programs}
    arguments = {"crash": [crashes], "bits": ["1"], "small": ["1"], "move": ["test_a_*"],
                 **{name: [str(int(crashes) // 4), seed] for name, seed in SNAPSHOTS_SEEDS.items()}}
    return {name: [named[name.rpartition("-")[2]], *arguments.get(name, [])]
            for name in ("crash", "damage", "zones", "cache", "snapshots", "more-snapshots", "bits", "checkpoint",
                         "small", "move")}


def passes(command, mutant):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env={**os.environ, "FLASH_MUTANT": mutant}, preexec_fn=limit_time, check=False).returncode == 0


def found_by(tests, mutant, first):
    """The first test that fails, or None."""
    names = [first, *(name for name in tests if name != first)]
    return next((name for name in names if not passes(tests[name], mutant)), None)


def run(programs):
    broken = found_by(commands(programs, "100"), "none", "crash")
    if broken is not None:
        sys.exit(f"{broken} fails while no rule is broken")
    expected = {mutant: test for test, mutants in FOUND_BY.items() for mutant in mutants}
    unknown = expected.keys() - MUTANTS.keys()
    if unknown:
        sys.exit(f"FOUND_BY names what is no mutant: {', '.join(sorted(unknown))}")
    tests = commands(programs, CRASHES)
    survivors = []
    for name in MUTANTS:
        first = expected.get(name, "crash")
        found = found_by(tests, name, first)
        told = "survives" if found is None else f"found by {found}"
        print(f"{name}: {told}{'' if found in (first, None) else ': to save time, say so in FOUND_BY'}", flush=True)
        survivors += [name] if found is None else []
    sys.exit(f"not found: {', '.join(survivors)}" if survivors else 0)


def main():
    if sys.argv[1] == "run":
        run(sys.argv[2:])
    middle = sys.argv.index("--")
    write(sys.argv[2:middle], sys.argv[middle + 1:])


if __name__ == "__main__":
    main()
