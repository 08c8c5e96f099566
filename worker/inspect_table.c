/* inspect_table.c - a GGUF file for people: keys, tensors, sizes, needs. */
#include "worker/inspect.h"

#include "common/json.h"
#include "worker/memory/plan.h"
#include "worker/model/config.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

enum { SHOWN_BYTES = 72, SHOWN_ITEMS = 4 };

static double mib(uint64_t n_bytes) {
    return (double)n_bytes / (1024.0 * 1024.0);
}

/* ---- keys ---- */

/* A text of the file in quotes and cut; control characters are escaped, so a
 * file cannot write to the terminal. */
static void print_text(gguf_string s, FILE *out) {
    json_text t = {0};
    bool cut = s.length > SHOWN_BYTES;
    json_text_string(&t, s.bytes, cut ? SHOWN_BYTES : s.length);
    if (!t.failed) (void)fprintf(out, "%s", t.bytes);
    if (cut) (void)fprintf(out, "... (%zu bytes)", s.length);
    json_text_release(&t);
}

static void print_array(const gguf_key *key, FILE *out) {
    gguf_cursor cursor = {0};
    gguf_string text;
    int64_t whole;
    double real;
    (void)fprintf(out, "%" PRIu64 " of %s: [", key->n_items, gguf_kind_name(key->item_kind));
    for (uint64_t i = 0; i < key->n_items && i < SHOWN_ITEMS; i++) {
        if (i > 0) (void)fprintf(out, ", ");
        if (gguf_next_string(key, &cursor, &text))
            print_text(text, out);
        else if (gguf_item_i64(key, i, &whole))
            (void)fprintf(out, "%" PRId64, whole);
        else if (gguf_item_f64(key, i, &real))
            (void)fprintf(out, "%g", real);
    }
    (void)fprintf(out, key->n_items > SHOWN_ITEMS ? ", ...]" : "]");
}

static void print_key(const gguf_key *key, FILE *out) {
    uint64_t natural;
    int64_t whole;
    double real;
    bool on;
    gguf_string text;
    (void)fprintf(out, "  %-50s %-7s ", gguf_label_of(key->name).text,
                  gguf_kind_name(key->kind));
    if (key->kind == GGUF_ARRAY)
        print_array(key, out);
    else if (gguf_read_string(key, &text))
        print_text(text, out);
    else if (gguf_read_bool(key, &on))
        (void)fprintf(out, on ? "true" : "false");
    else if (gguf_read_u64(key, &natural))
        (void)fprintf(out, "%" PRIu64, natural);
    else if (gguf_read_i64(key, &whole))
        (void)fprintf(out, "%" PRId64, whole);
    else if (gguf_read_f64(key, &real))
        (void)fprintf(out, "%g", real);
    (void)fprintf(out, "\n");
}

/* ---- tensors and sizes ---- */

static void print_tensor(const gguf_tensor *t, FILE *out) {
    char shape[96] = "";
    size_t at = 0;
    for (uint32_t d = 0; d < t->n_dims && at < sizeof shape; d++) {
        at += (size_t)snprintf(shape + at, sizeof shape - at,
                               d == 0 ? "%" PRIu64 : " x %" PRIu64, t->ne[d]);
    }
    (void)fprintf(out, "  %-40s %-8s %-24s %14" PRIu64 " %14" PRIu64 "\n",
                  gguf_label_of(t->name).text, gguf_type_traits(t->type_id)->name, shape,
                  t->n_bytes, t->file_offset);
}

enum { MAX_TYPE_ID = 64 };

static void print_types(const gguf_file *file, FILE *out) {
    uint64_t n_bytes[MAX_TYPE_ID] = {0};
    size_t n_tensors[MAX_TYPE_ID] = {0};
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        n_bytes[t->type_id % MAX_TYPE_ID] += t->n_bytes;
        n_tensors[t->type_id % MAX_TYPE_ID]++;
    }
    (void)fprintf(out, "\nBy type\n");
    for (uint32_t id = 0; id < MAX_TYPE_ID; id++) {
        if (n_tensors[id] == 0) continue;
        (void)fprintf(out, "  %-20s %6zu tensors %12.2f MiB\n", gguf_type_traits(id)->name,
                      n_tensors[id], mib(n_bytes[id]));
    }
}

static bool has_part(const gguf_tensor *t, const char *part) {
    return memmem(t->name.bytes, t->name.length, part, strlen(part)) != NULL;
}

typedef enum role {
    ROLE_EMBEDDING,
    ROLE_HEAD,
    ROLE_BACKBONE,
    ROLE_EXPERTS,
    ROLE_MTP,
    N_ROLES
} role;

/* The block number of "blk.N.", or -1. */
static long block_of(const gguf_tensor *t) {
    char name[64];
    int n = 0;
    long block = -1;
    (void)snprintf(name, sizeof name, "%.*s", (int)t->name.length, t->name.bytes);
    return sscanf(name, "blk.%5ld.%n", &block, &n) == 1 && n > 0 ? block : -1;
}

/* n_layers: blocks from this one on belong to multi-token prediction. */
static role role_of(const gguf_tensor *t, long n_layers) {
    long block = block_of(t);
    if (block >= n_layers) return ROLE_MTP;
    if (has_part(t, "token_embd.")) return ROLE_EMBEDDING;
    if (has_part(t, "_exps.")) return ROLE_EXPERTS;
    if (block < 0 && has_part(t, "output.weight")) return ROLE_HEAD;
    return ROLE_BACKBONE;
}

static void print_roles(const gguf_file *file, long n_layers, uint64_t n_bytes[N_ROLES],
                        FILE *out) {
    static const char *const names[N_ROLES] = {"token embedding", "output head", "backbone",
                                               "routed experts", "MTP blocks"};
    memset(n_bytes, 0, N_ROLES * sizeof n_bytes[0]);
    for (size_t i = 0; i < gguf_n_tensors(file); i++) {
        const gguf_tensor *t = gguf_tensor_at(file, i);
        n_bytes[role_of(t, n_layers)] += t->n_bytes;
    }
    (void)fprintf(out, "\nBy role\n");
    for (int i = 0; i < N_ROLES; i++) {
        if (n_bytes[i] == 0) continue;
        (void)fprintf(out, "  %-20s %27.2f MiB\n", names[i], mib(n_bytes[i]));
    }
}

/* ---- what running it needs ---- */

static void print_kv(const model_config *c, FILE *out) {
    static const struct {
        const char *name;
        kv_type type;
    } types[] = {{"f32", KV_F32}, {"f16", KV_F16}, {"q8", KV_Q8}, {"q4", KV_Q4}};
    (void)fprintf(out, "  KV a token          ");
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        uint64_t n_bytes = plan_page_bytes(c, types[i].type) / KV_PAGE_TOKENS;
        (void)fprintf(out, "%s %s %" PRIu64 " bytes", i == 0 ? "" : ",", types[i].name,
                      n_bytes);
    }
    (void)fprintf(out, "\n");
}

static void print_needs(const model_config *c, const uint64_t n_bytes[N_ROLES], FILE *out) {
    uint64_t head = c->tied_head ? n_bytes[ROLE_EMBEDDING] : n_bytes[ROLE_HEAD];
    uint64_t per_token = n_bytes[ROLE_BACKBONE] + head;
    (void)fprintf(out,
                  "\nTo run it (%s, %" PRIu32 " layers: %" PRIu32 " delta net, %" PRIu32
                  " full attention; trained for %" PRIu32 " tokens)\n",
                  c->arch, c->n_layers, c->n_linear_layers, c->n_full_layers, c->n_context);
    (void)fprintf(out, "  always in memory     %.2f MiB: backbone, embedding and head\n",
                  mib(n_bytes[ROLE_BACKBONE] + n_bytes[ROLE_EMBEDDING] + n_bytes[ROLE_HEAD]));
    if (c->moe) {
        uint64_t n_experts = plan_n_experts(c);
        uint64_t used = (uint64_t)c->n_layers * c->n_experts_used;
        uint64_t one = n_experts == 0 ? 0 : n_bytes[ROLE_EXPERTS] / n_experts;
        per_token += used * one;
        (void)fprintf(out,
                      "  experts              %" PRIu64 ", %" PRIu64 " a token; one is %.3f MiB"
                      " on average\n",
                      n_experts, used, mib(one));
    }
    (void)fprintf(out, "  weights read a token %.2f MiB\n", mib(per_token));
    print_kv(c, out);
    (void)fprintf(out, "  state of a sequence  %.2f MiB\n", mib(model_config_state_bytes(c)));
}

static void print_model(const gguf_file *file, FILE *out) {
    model_config config;
    error err = {STATUS_OK, ""};
    uint64_t n_bytes[N_ROLES];
    bool runs = model_config_read(&config, file, &err) == STATUS_OK;
    print_roles(file, runs ? (long)config.n_layers : LONG_MAX, n_bytes, out);
    if (runs)
        print_needs(&config, n_bytes, out);
    else
        (void)fprintf(out, "\nThis build cannot run it: %s\n", err.text);
}

static void print_head(const gguf_file *file, FILE *out) {
    char hash[33];
    gguf_hash(file, hash);
    for (uint32_t i = 0; i < gguf_n_shards(file); i++) {
        (void)fprintf(out, "%s: %" PRIu64 " bytes, data from byte %" PRIu64 "\n",
                      gguf_shard_path(file, i), gguf_file_bytes(file, i),
                      gguf_data_start(file, i));
    }
    (void)fprintf(out, "GGUF version %" PRIu32 ", alignment %" PRIu32 ", hash %s\n",
                  gguf_version(file), gguf_alignment(file), hash);
}

status inspect_table(const gguf_file *file, FILE *out, error *err) {
    print_head(file, out);
    (void)fprintf(out, "\n%zu keys\n", gguf_n_keys(file));
    for (size_t i = 0; i < gguf_n_keys(file); i++)
        print_key(gguf_key_at(file, i), out);
    (void)fprintf(out, "\n%zu tensors: type, shape (contiguous first), bytes, at byte\n",
                  gguf_n_tensors(file));
    for (size_t i = 0; i < gguf_n_tensors(file); i++)
        print_tensor(gguf_tensor_at(file, i), out);
    print_types(file, out);
    print_model(file, out);
    if (fflush(out) == 0 && !ferror(out)) return STATUS_OK;
    return error_set_errno(err, STATUS_IO, errno, "cannot write the table");
}
