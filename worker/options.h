/* options.h - the settings of siliceo-worker: one table for the keys that every
 * subcommand that loads a model takes, and the struct they fill.
 *
 * A subcommand with keys of its own puts OPTIONS_MODEL_KEYS(struct, member) first
 * in its table and embeds model_options as that member.  Filled once at start.
 */
#ifndef SILICEO_WORKER_OPTIONS_H
#define SILICEO_WORKER_OPTIONS_H

#include "common/config.h"
#include "worker/engine.h"

typedef struct model_options {
    const char *config; /* path of the file, already read */
    const char *model;
    const char *backend;
    const char *profile;
    const char *slots; /* a count, "25%", "all" or "auto" */
    const char *kv;
    const char *activations;
    int64_t threads;
    int64_t ctx;
    int64_t sequences;
    int64_t chunk;
    int64_t max_step_ms;
    int64_t park_mib;
    int64_t inserts;
    const char *cpu_lane;
    bool graphs;
    int64_t vram_mib;
    int64_t ram_mib;
    int64_t loaders;
    int64_t seed;
    bool nfc;
    int64_t thinking_tokens;
    int64_t loop_reasoning;
    int64_t loop_answer;
    int64_t loop_code;
    int64_t grace_tokens;
    const char *pooling;
    int64_t prefix_ram_mib;
    int64_t prefix_every_tokens;
    bool prefix_ahead;
    int64_t prefix_states;
    int64_t prefix_disk_mib;
    const char *prefix_disk_dir;
    const char *experts_dir;
    double experts_save_s;
    int64_t warm_up_ms;
    const char *speculate;
    const char *draft;
    int64_t draft_tokens;
    int64_t draft_gpu_layers;
    const char *log_level;
    bool help;
} model_options;

#define OPTIONS_KEY(s, m, key, kind, field, fallback, min, max, choices, help)                 \
    { key, kind, offsetof(s, m.field), fallback, min, max, choices, help }

#define OPTIONS_MODEL_KEYS(s, m)                                                               \
    OPTIONS_KEY(s, m, "config", CONFIG_STRING, config, NULL, 0, 0, NULL,                       \
                "file with any of these keys"),                                                \
        OPTIONS_KEY(s, m, "model", CONFIG_LIST, model, NULL, 0, 0, NULL,                       \
                    "GGUF file; of a split model the first shard; serve takes several, each "  \
                    "with settings of its own after it, as ctx=2048"),                         \
        OPTIONS_KEY(s, m, "backend", CONFIG_CHOICE, backend, "auto", 0, 0, "auto|cpu|cuda",    \
                    "where to compute; auto takes a GPU if there is one"),                     \
        OPTIONS_KEY(s, m, "profile", CONFIG_STRING, profile, NULL, 0, 0, NULL,                 \
                    "cache profile: a name in deploy/profiles or a path"),                     \
        OPTIONS_KEY(s, m, "slots", CONFIG_STRING, slots, "auto", 0, 0, NULL,                   \
                    "expert slots over all layers: a count, a share as 25%, all or auto"),     \
        OPTIONS_KEY(s, m, "kv", CONFIG_CHOICE, kv, "f16", 0, 0, "f32|f16|q8|q4",               \
                    "type of cached keys and values"),                                         \
        OPTIONS_KEY(s, m, "activations", CONFIG_CHOICE, activations, "int8", 0, 0, "int8|f32", \
                    "activations of the matrix products"),                                     \
        OPTIONS_KEY(s, m, "threads", CONFIG_INT, threads, "0", 0, 1024, NULL,                  \
                    "CPU threads; 0: one a usable core"),                                      \
        OPTIONS_KEY(s, m, "ctx", CONFIG_INT, ctx, "0", 0, 1048576, NULL,                       \
                    "tokens a sequence may hold; 0: the model's, as memory allows"),           \
        OPTIONS_KEY(s, m, "sequences", CONFIG_INT, sequences, "4", 1, 256, NULL,               \
                    "sequences that run at once"),                                             \
        OPTIONS_KEY(s, m, "chunk", CONFIG_INT, chunk, "0", 0, 8192, NULL,                      \
                    "prompt tokens of one step; 0: 512, up to 2048 on a GPU with room"),       \
        OPTIONS_KEY(s, m, "step.max_ms", CONFIG_INT, max_step_ms, "100", 0, 3600000, NULL,     \
                    "what a step may take beside running streams, ms; 0: no bound"),           \
        OPTIONS_KEY(s, m, "park_mib", CONFIG_INT, park_mib, "-1", -1, 16777216, NULL,          \
                    "RAM for what sequences hold that must wait again, MiB; -1: some"),        \
        OPTIONS_KEY(s, m, "inserts", CONFIG_INT, inserts, "4", 1, 65536, NULL,                 \
                    "experts brought into slots a layer and step at most"),                    \
        OPTIONS_KEY(s, m, "cpu_lane", CONFIG_CHOICE, cpu_lane, "off", 0, 0,                    \
                    "off|prompts|on|all",                                                      \
                    "experts without a slot on a GPU: shipped, shared with the CPU, or all"),  \
        OPTIONS_KEY(s, m, "graphs", CONFIG_BOOL, graphs, "true", 0, 0, NULL,                   \
                    "replay decoding steps on a GPU as recorded graphs"),                      \
        OPTIONS_KEY(s, m, "vram_mib", CONFIG_INT, vram_mib, "0", 0, 4194304, NULL,             \
                    "VRAM to use, MiB; 0: what is free"),                                      \
        OPTIONS_KEY(s, m, "ram_mib", CONFIG_INT, ram_mib, "0", 0, 16777216, NULL,              \
                    "RAM to use, MiB; 0: what is free"),                                       \
        OPTIONS_KEY(s, m, "loaders", CONFIG_INT, loaders, "8", 1, 64, NULL,                    \
                    "threads that read experts from disk"),                                    \
        OPTIONS_KEY(s, m, "seed", CONFIG_INT, seed, "0", 0, 9007199254740991.0, NULL,          \
                    "seed of requests that bring none; 0: a random one"),                      \
        OPTIONS_KEY(s, m, "nfc", CONFIG_BOOL, nfc, "false", 0, 0, NULL,                        \
                    "normalise text to NFC before splitting"),                                 \
        OPTIONS_KEY(s, m, "thinking.max_tokens", CONFIG_INT, thinking_tokens, "-1", -1,        \
                    1048576, NULL,                                                             \
                    "tokens of deliberation at most; 0: no limit; -1: 1024 where a request "   \
                    "says nothing"),                                                           \
        OPTIONS_KEY(s, m, "loop.reasoning_tokens", CONFIG_INT, loop_reasoning, "128", 0,       \
                    1048576, NULL,                                                             \
                    "a circle of so many tokens ends a deliberation; 0: never"),               \
        OPTIONS_KEY(s, m, "loop.answer_tokens", CONFIG_INT, loop_answer, "512", 0, 1048576,    \
                    NULL, "a circle of so many tokens ends an answer; 0: never"),              \
        OPTIONS_KEY(s, m, "loop.code_tokens", CONFIG_INT, loop_code, "1024", 0, 1048576, NULL, \
                    "the same in a fenced block of an answer"),                                \
        OPTIONS_KEY(s, m, "grace_tokens", CONFIG_INT, grace_tokens, "64", 0, 4096, NULL,       \
                    "tokens beyond a limit that may finish a chat's sentence; 0: none"),       \
        OPTIONS_KEY(s, m, "embedding.pooling", CONFIG_CHOICE, pooling, "auto", 0, 0,           \
                    "auto|last|mean",                                                          \
                    "embeddings: the last token's row or the mean; auto: as the file says"),   \
        OPTIONS_KEY(s, m, "prefix.ram_mib", CONFIG_INT, prefix_ram_mib, "-1", -1, 16777216,    \
                    NULL,                                                                      \
                    "RAM for beginnings of prompts that need not run again, MiB; 0: none; "    \
                    "-1: a sixteenth, 4096 at most"),                                          \
        OPTIONS_KEY(s, m, "prefix.states", CONFIG_INT, prefix_states, "0", 0, 1024, NULL,      \
                    "states beside the sequences' own, in VRAM on a GPU, for the newest "      \
                    "snapshots of prompts"),                                                   \
        OPTIONS_KEY(s, m, "prefix.disk_mib", CONFIG_INT, prefix_disk_mib, "0", 0, 1073741824,  \
                    NULL,                                                                      \
                    "the same on disk, for each model, kept over restarts, MiB; 0: none"),     \
        OPTIONS_KEY(s, m, "prefix.disk_dir", CONFIG_STRING, prefix_disk_dir, NULL, 0, 0, NULL, \
                    "folder for prefix.disk_mib; no other process may use it for this model"), \
        OPTIONS_KEY(s, m, "prefix.every_tokens", CONFIG_INT, prefix_every_tokens, "1024", 0,   \
                    1048576, NULL,                                                             \
                    "long prompts can be resumed every so many tokens; 0: at messages alone"), \
        OPTIONS_KEY(s, m, "prefix.ahead", CONFIG_BOOL, prefix_ahead, "true", 0, 0, NULL,       \
                    "while nothing else is to do, run an answer (text, calls of tools, each "  \
                    "of the first 4 choices) as what the next turn's prompt begins with"),     \
        OPTIONS_KEY(s, m, "experts.dir", CONFIG_STRING, experts_dir, NULL, 0, 0, NULL,         \
                    "folder for a list of the experts used most, a file a model, with which "  \
                    "slots are filled at the next start; none: no list is kept"),              \
        OPTIONS_KEY(s, m, "experts.save_s", CONFIG_REAL, experts_save_s, "60", 0.1, 86400,     \
                    NULL, "it is written so long after the last time, and at the end, s"),     \
        OPTIONS_KEY(s, m, "warm_up_ms", CONFIG_INT, warm_up_ms, "-1", -1, 60000, NULL,         \
                    "time for steps before the model is ready, ms; 0: for a token alone; "     \
                    "-1: 1000 on a GPU, 0 on the CPU"),                                        \
        OPTIONS_KEY(s, m, "speculate", CONFIG_CHOICE, speculate, "auto", 0, 0,                 \
                    "auto|off|lookup|draft|mtp",                                               \
                    "who guesses tokens ahead: prompt look-up, a draft model, the model's "    \
                    "MTP block; auto: look-up, and the draft where one is named"),             \
        OPTIONS_KEY(s, m, "draft", CONFIG_STRING, draft, NULL, 0, 0, NULL,                     \
                    "GGUF file of a small model with the same vocabulary, which guesses"),     \
        OPTIONS_KEY(s, m, "draft_gpu_layers", CONFIG_INT, draft_gpu_layers, "-1", -1, 4096,    \
                    NULL,                                                                      \
                    "layers of the draft on the GPU, the last and the head; the first are "    \
                    "then on the CPU; -1: all where the model is"),                            \
        OPTIONS_KEY(s, m, "draft_tokens", CONFIG_INT, draft_tokens, "0", 0, 63, NULL,          \
                    "tokens guessed ahead at most; 0: auto"),                                  \
        OPTIONS_KEY(s, m, "log_level", CONFIG_CHOICE, log_level, "info", 0, 0,                 \
                    "debug|info|warn|error", "lines below it are not written"),                \
        OPTIONS_KEY(s, m, "help", CONFIG_BOOL, help, "false", 0, 0, NULL, "this list")

/* Read file, environment and flags of a subcommand, apply the profile, set the
 * log level.  Returns -1 to go on, or the exit code (help printed: 0, an error
 * printed: 2).  needs_model: --model must be there. */
int options_read(config *c, const char *program, const config_key *keys, size_t n_keys,
                 void *options, const model_options *common, bool needs_model, int argc,
                 char *argv[]);

/* The backend of a wish: auto takes a GPU where this build and machine have one, else the
 * CPU, with the reason in `reason` (else empty).  cuda without one fails with the reason. */
status options_backend(const char *wish, backend_kind *out, char *reason, size_t cap,
                       error *err);

/* What the engine takes.  n_experts_total (layers x experts, 0 for a dense model)
 * resolves a share of slots; a bad --slots names the value. */
status options_engine_params(const model_options *o, uint64_t n_experts_total,
                             engine_params *out, error *err);

#endif
