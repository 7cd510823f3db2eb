// SPDX-License-Identifier: Apache-2.0
/*
 * Options and keys as tables. A table of fields describes once what can be set in an object. All
 * code that reads, prints or compares settings uses the table, so an option is one line in it plus
 * the code that uses its value:
 *
 *                     ┌─ a command line, a configuration file, "gmblock export set" ─▶ object
 *   table of fields ──┼─ help texts, lists of keys in messages, shell completion
 *                     └─ whether two objects have the same value, and what a change needs
 *
 * The type of a field defines how its value is stored in the object. Values without a suitable type
 * (FIELD_OWN) are stored by a function.
 *
 * Threading: tables are constant; the owner of an object defines which thread may set it.
 * Ownership: tables and their texts are static; an object owns its copies of texts (FIELD_TEXT),
 * which field_clear() frees. Errors: -EINVAL, -ERANGE or -ENOMEM with an error message that does
 * not name the key, because the caller reports where the value came from.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/error.h"

enum field_type {
	FIELD_OWN, /* stored by the field's set() */
	/* bool: "yes", "no" and their synonyms; true if the value is omitted */
	FIELD_FLAG,
	FIELD_COUNT, /* uint32_t, from min to max */
	FIELD_BYTES, /* uint64_t, from min to max; max = 0: no upper limit */
	FIELD_TIME,  /* uint64_t in nanoseconds, with the limits of FIELD_BYTES */
	/* an enum: index into words; or a bool: whether it is the second of two words */
	FIELD_WORD,
	FIELD_TEXT, /* char *, a copy; NULL if there is none or it is empty */
	/* const char *: a pointer to the argument of a command line, not copied; NULL: not given */
	FIELD_ARGUMENT,
};

enum field_flag {
	FIELD_REPEATS = 1 << 0, /* can be given more than once; a list in files */
	/* on command lines: a second value is rejected; without this flag, the last value counts */
	FIELD_ONCE = 1 << 1,
	FIELD_BARE = 1 << 2, /* the value can be omitted; set() then gets NULL */
	/* the empty text is rejected, as it always is for paths (field_is_path()) */
	FIELD_NOT_EMPTY = 1 << 3,
	FIELD_LIVE = 1 << 4,	/* can change while the object is in use */
	FIELD_RESTART = 1 << 5, /* a change needs a restart */
	FIELD_IN_FILE = 1 << 6, /* also a key of the configuration file */
	FIELD_LIMIT = 1 << 7,	/* also a key of the configuration file, in the group "limits" */
	FIELD_HIDDEN = 1 << 8,	/* not an option; must follow all fields that are options */
	FIELD_PLACE = 1 << 9,	/* in field_set_parts(): the value has no key in front of it */
};

struct field {
	const char *key;
	const char *form;    /* syntax of values, such as "SIZE"; NULL: the words, if any */
	const char *help;    /* purpose: a sentence without its full stop */
	const char *example; /* a valid value, or NULL if none is shown */
	enum field_type type;
	uint32_t flags; /* enum field_flag */
	char letter;	/* short option, or 0 */
	uint32_t offset;
	/* size of the value; two FIELD_OWN values are equal if these bytes are equal */
	uint32_t bytes;
	uint64_t min;
	uint64_t max;
	const char *low;	  /* error message for values below min; NULL: a generic one */
	const char *const *words; /* NULL-terminated */
	const char *heading;	  /* heading for the fields from here on, in help texts; or NULL */
	/* For FIELD_OWN: parses text and stores the value. text is NULL if the value was
	 * omitted. */
	int (*set)(void *object, const char *text, struct error *error);
	/* For the other types, optional: an additional check of the text. */
	int (*check)(void *object, const char *text, struct error *error);
	/* Returns whether two objects have the same value; NULL: compare by type. */
	bool (*same)(const void *a, const void *b);
};

/* Location of a field's value: the members of object from first to last, which must be adjacent,
 * without padding between them. Types other than FIELD_OWN have one member. */
#define FIELD_AT(object, first, last)                                                              \
	.offset = offsetof(object, first),                                                         \
	.bytes = offsetof(object, last) + sizeof(((object *)0)->last) - offsetof(object, first)

/* Location of a field's value if it is a single member of object, of any type. */
#define FIELD_IN(object, member) FIELD_AT(object, member, member)

/* Returns the idx-th field of a list that may consist of several tables; NULL after the last. */
typedef const struct field *field_at(uint32_t idx);

/* Returns the field with that key, or NULL. */
const struct field *field_find(field_at *at, const char *key);

/* Rejects a second value for a key that takes one, and a missing value. given: whether the key was
 * set before. */
GMB_MUST_CHECK int field_check(
	const struct field *field, bool given, const char *text, struct error *error);
/* Parses text and stores the value in the object; text is NULL if the value was omitted. */
GMB_MUST_CHECK int field_set(
	const struct field *field, void *object, const char *text, struct error *error);
/* Sets fields from the parts of a text such as "100M:latency=10ms", in any order. "KEY=VALUE" sets
 * the field with that key. Parts without a key set the fields with FIELD_PLACE, in the order of the
 * table; these are required, except with FIELD_BARE. A field is set once at most. All fields have a
 * form. The object is undefined after an error. */
GMB_MUST_CHECK int field_set_parts(const struct field *fields, uint32_t count, void *object,
	const char *text, struct error *error);
/* Copies the field's value from one object to another; not for FIELD_OWN. */
GMB_MUST_CHECK int field_copy(
	const struct field *field, void *to, const void *from, struct error *error);
/* Frees and zeroes the value; not for FIELD_OWN. */
void field_clear(const struct field *field, void *object);
/* Returns whether the field has the same value in both objects, regardless of how it was written.
 * NULL means an object that is all zero. */
bool field_same(const struct field *field, const void *a, const void *b);

/* --- messages and help texts ------------------------------------------------------------------ */

enum { FIELD_FORM_BYTES = 120 };

/* Formats the syntax of values: the form, or the words as "auto|on|off"; "" if there is neither.
 * Returns out. */
const char *field_form(const struct field *field, char out[FIELD_FORM_BYTES]);
/* Returns whether the value is the path of a file or folder, or one of the words that the form has
 * after it, as "FILE|discard". */
bool field_is_path(const struct field *field);
/* Reports an unknown key, with the nearest known one or a list of all. Returns -EINVAL. */
int field_unknown(field_at *at, const char *key, struct error *error);

/* Copies the beginning of the help text, as many whole words as fit. Returns out. */
const char *field_summary(const struct field *field, char *out, size_t out_bytes);
/* Prints a line of help: the name, and the help next to it or below it, wrapped at 80 columns. */
void field_help_line(FILE *out, const char *name, const char *help);
/* Print the help of an option, "-x, --key FORM", or of a key, "key=FORM", with "(live)" if the
 * field can change while the object is in use. */
void field_help_option(FILE *out, const struct field *field);
void field_help_key(FILE *out, const struct field *field);
