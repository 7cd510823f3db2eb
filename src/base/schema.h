// SPDX-License-Identifier: Apache-2.0
/*
 * Options and keys as tables. What can be set in an object is described once, by a table of fields;
 * whatever reads, prints or compares settings goes by the table, so that an option is one line in
 * it and the place where its value is used:
 *
 *                     ┌─ a command line, a configuration file, "gmblock export set" ─▶ object
 *   table of fields ──┼─ help texts, lists of keys in messages, completion of shells
 *                     └─ whether two objects have the same value, and what a change needs
 *
 * A field lies in the object as its type says. What no type describes has a function that sets it.
 *
 * Threading: tables are constant; whoever has the object says which thread may set it. Ownership:
 * tables and their texts are static; an object owns its copies of texts (FIELD_TEXT), which
 * field_clear() frees. Errors: -EINVAL, -ERANGE or -ENOMEM with a sentence that does not name the
 * key: the caller says where the value stands.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"

enum field_type {
	FIELD_OWN,	/* what set makes of it */
	FIELD_FLAG,	/* bool: "yes" and "no" and their like; true when the value is left out */
	FIELD_COUNT,	/* uint32_t, from min to max */
	FIELD_BYTES,	/* uint64_t, from min (to max, unless it is 0) */
	FIELD_TIME,	/* uint64_t in nanoseconds, the same */
	FIELD_WORD,	/* an enum: which of words */
	FIELD_TEXT,	/* char *, a copy; NULL: none, or an empty one */
	FIELD_ARGUMENT, /* const char *: the value itself, for command lines; NULL: none */
};

enum field_flag {
	FIELD_REPEATS = 1 << 0, /* can be given more than once: a list in files */
	FIELD_ONCE = 1 << 1, /* on command lines: refused the second time; else the last counts */
	FIELD_BARE = 1 << 2, /* the value can be left out: set gets NULL */
	FIELD_NOT_EMPTY = 1 << 3, /* of text; a path never is (field_is_path()) */
	FIELD_LIVE = 1 << 4,	  /* may change while it is used */
	FIELD_RESTART = 1 << 5,	  /* a change of it takes a restart */
	FIELD_IN_FILE = 1 << 6,	  /* is a key of the configuration file as well */
	FIELD_LIMIT = 1 << 7,	  /* the same, in the group "limits" */
	FIELD_HIDDEN = 1 << 8,	  /* is no option; behind those that are */
};

struct field {
	const char *key;
	const char *form;    /* what values look like: "SIZE"; NULL: the words, or none */
	const char *help;    /* what it is for: a sentence without its full stop */
	const char *example; /* a valid value; or NULL where none is shown */
	enum field_type type;
	uint32_t flags; /* enum field_flag */
	char letter;	/* its short form as an option, or 0 */
	uint32_t offset;
	uint32_t bytes; /* from there; two values of a type of its own are equal when they are */
	uint64_t min;
	uint64_t max;
	const char *low; /* why it is refused when less than min; NULL: the common sentence */
	const char *const *words; /* NULL behind the last */
	const char *heading;	  /* of the fields from here on, in help texts; or NULL */
	/* With FIELD_OWN. text is NULL when it was left out. */
	int (*set)(void *object, const char *text, struct error *error);
	/* With the other types, optional: what else has to be true of the text. */
	int (*check)(void *object, const char *text, struct error *error);
	/* Whether two objects have the same value; NULL: as the type says. */
	bool (*same)(const void *a, const void *b);
};

/* Where a field has its value: the members of object from first to last, which are neighbours
 * without padding; of the types but FIELD_OWN it is one. */
#define FIELD_AT(object, first, last)                                                              \
	.offset = offsetof(object, first),                                                         \
	.bytes = offsetof(object, last) + sizeof(((object *)0)->last) - offsetof(object, first)

/* Where the value of any type lies. */
#define FIELD_IN(object, member) FIELD_AT(object, member, member)

/* The idx-th field of what may be more than one table; NULL behind the last. */
typedef const struct field *field_at(uint32_t idx);

/* The field with that key, or NULL. */
const struct field *field_find(field_at *at, const char *key);

/* Refuses a second value where one is expected, and a missing one. given: it was set before. */
GMB_MUST_CHECK int field_check(
	const struct field *field, bool given, const char *text, struct error *error);
/* Sets it to what the text says; NULL: the value was left out. */
GMB_MUST_CHECK int field_set(
	const struct field *field, void *object, const char *text, struct error *error);
/* Gives to the value that from has; not of FIELD_OWN. */
GMB_MUST_CHECK int field_copy(
	const struct field *field, void *to, const void *from, struct error *error);
/* Frees what field_set() has made; not of FIELD_OWN. */
void field_clear(const struct field *field, void *object);
/* Whether both have the same value, however it was written. An object may be NULL: zeroes. */
bool field_same(const struct field *field, const void *a, const void *b);

/* --- messages and help texts ------------------------------------------------------------------ */

enum { FIELD_FORM_BYTES = 120 };

/* What values look like: the form, or its words as "auto|on|off"; "": there is none. Returns out.
 */
const char *field_form(const struct field *field, char out[FIELD_FORM_BYTES]);
/* Whether its value is the path of a file or a folder. */
bool field_is_path(const struct field *field);
/* Describes a key that is not known: the nearest, or a list of all. Returns -EINVAL. */
int field_unknown(field_at *at, const char *key, struct error *error);

/* The first words of the help, as many as have room. Returns out. */
const char *field_summary(const struct field *field, char *out, size_t out_bytes);
/* Prints a line of help: name, and help beside or below it, in lines of at most 80 columns. */
void field_help_line(FILE *out, const char *name, const char *help);
/* Prints the help of an option, "-x, --key FORM", or of a key, "key=FORM", which says "(live)" of a
 * field that may change while it is used. */
void field_help_option(FILE *out, const struct field *field);
void field_help_key(FILE *out, const struct field *field);
