/* test_plan.c - the plan adds up, and says why something does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/memory/host_ram.h"
#include "worker/memory/plan.h"
#include <string.h>

enum { MIB = 1 << 20 };

static gguf_file *file;
static model_config config;
static model_weights weights;

static int open_demo(void **state) {
    (void)state;
    error err = {0};
    if (gguf_open(&file, "deploy/models/demo.gguf", &err) != STATUS_OK ||
        model_config_read(&config, file, &err) != STATUS_OK ||
        model_weights_map(&weights, &config, file, &err) != STATUS_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int close_demo(void **state) {
    (void)state;
    model_weights_release(&weights);
    gguf_close(file);
    return 0;
}

static plan_request plain_request(void) {
    return (plan_request){.n_context = 4096,
                          .n_sequences = 4,
                          .chunk_tokens = 512,
                          .kv = KV_F16,
                          .n_slots = -1,
                          .park_bytes = -1,
                          .ram_bytes = (uint64_t)4096 * MIB};
}

static uint64_t bytes_of(const memory_plan *plan, const char *part) {
    for (size_t i = 0; i < plan->n_lines; i++) {
        if (strcmp(plan->lines[i].part, part) == 0) return plan->lines[i].bytes;
    }
    fail_msg("the plan has no line '%s'", part);
    return 0;
}

/* The numbers that everyone allocates by agree with the lines, and the lines with the sum. */
static void assert_adds_up(const memory_plan *plan, const plan_request *r) {
    uint64_t sum = 0;
    for (size_t i = 0; i < plan->n_lines; i++)
        sum += plan->lines[i].bytes;
    assert_int_equal(sum - bytes_of(plan, "experts"), plan->needed_bytes);
    assert_true(plan->needed_bytes <= r->ram_bytes);
    assert_int_equal(bytes_of(plan, "KV pages"),
                     plan->n_pages * plan_page_bytes(&config, r->kv));
    assert_int_equal(bytes_of(plan, "recurrent states"),
                     plan->n_states * model_config_state_bytes(&config));
    assert_true(plan->n_context <= plan->n_pages * MODEL_PAGE_TOKENS);
    assert_true(plan->n_context >= MODEL_PAGE_TOKENS);
    assert_int_equal(plan->chunk_tokens % MODEL_CHUNK_TOKENS, 0);
    assert_int_equal(plan->max_outputs, plan->n_sequences + plan->n_step_guesses);
    assert_int_equal(plan->max_rows, plan->chunk_tokens + plan->max_outputs);
}

static void plan_on_card(memory_plan *plan, const plan_request *r) {
    error err = {0};
    if (plan_make(plan, &config, &weights, r, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void make(memory_plan *plan, const plan_request *r) {
    plan_on_card(plan, r);
    assert_adds_up(plan, r);
}

static void assert_refused(const plan_request *r, status code, const char *word) {
    memory_plan plan;
    error err = {0};
    assert_int_equal(plan_make(&plan, &config, &weights, r, &err), code);
    if (strstr(err.text, word) == NULL) fail_msg("'%s' does not name '%s'", err.text, word);
}

static void the_demo_model_is_planned_as_asked(void **state) {
    (void)state;
    plan_request r = plain_request();
    memory_plan plan;
    make(&plan, &r);
    assert_int_equal(plan.n_context, 4096);
    assert_int_equal(plan.n_pages, 4 * 64);
    assert_int_equal(plan.n_slots, 0);
    assert_int_equal(plan.n_experts_total, 8 * 32);
    uint64_t all = 0;
    for (size_t i = 0; i < gguf_n_tensors(file); i++)
        all += gguf_tensor_at(file, i)->n_bytes;
    assert_int_equal(bytes_of(&plan, "backbone") + bytes_of(&plan, "experts"), all);
}

static void slots_take_the_largest_expert_each(void **state) {
    (void)state;
    plan_request r = plain_request();
    memory_plan plan;
    r.n_slots = 64;
    make(&plan, &r);
    assert_int_equal(plan.n_slots, 64);
    uint64_t experts = bytes_of(&plan, "experts");
    assert_true(bytes_of(&plan, "expert slots") >= experts / 4);
    assert_true(bytes_of(&plan, "expert slots") < experts / 2);
}

static void slots_below_one_tokens_working_set_are_refused(void **state) {
    (void)state;
    plan_request r = plain_request();
    r.n_slots = 31;
    assert_refused(&r, STATUS_BAD_INPUT, "slots = 31 is below 32");
    r.n_slots = 257;
    assert_refused(&r, STATUS_BAD_INPUT, "slots = 257 is more than the model's 256");
    r.n_slots = 32;
    memory_plan plan;
    make(&plan, &r);
}

static void what_does_not_fit_is_refused_with_the_numbers(void **state) {
    (void)state;
    plan_request r = plain_request();
    r.ram_bytes = 16 * MIB;
    assert_refused(&r, STATUS_NO_MEMORY, "16 MiB may be used");
    r = plain_request();
    r.ram_bytes = 60 * MIB;
    r.n_context = 32768;
    assert_refused(&r, STATUS_NO_MEMORY, "ctx = 32768 needs");
}

static plan_request small_request(uint64_t ram_mib) {
    plan_request r = plain_request();
    r.n_context = 1024;
    r.n_sequences = 1;
    r.chunk_tokens = 64;
    r.ram_bytes = ram_mib * MIB;
    return r;
}

static void experts_beyond_memory_stay_on_disk(void **state) {
    (void)state;
    memory_plan plan;
    plan_request r = small_request(100);
    make(&plan, &r);
    assert_int_equal(plan.host_records, 0); /* the page cache has room for the file */
    r = small_request(30);
    make(&plan, &r);
    assert_true(plan.host_records >= plan_least_records(&config));
    assert_true(plan.host_records < plan.n_experts_total);
    uint64_t record = bytes_of(&plan, "expert records") / plan.host_records;
    assert_true(record >= layer_expert_bytes(&weights.layers[0]));
    assert_true(r.ram_bytes - plan.needed_bytes < record);
    r.ram_bytes = 17 * MIB;
    assert_refused(&r, STATUS_NO_MEMORY,
                   "at least 48 are needed, a layer's 32 and 16 under way");
}

static void contexts_out_of_range_are_refused(void **state) {
    (void)state;
    plan_request r = plain_request();
    r.n_context = 63;
    assert_refused(&r, STATUS_BAD_INPUT, "ctx = 63");
    r.n_context = config.n_context + 1;
    assert_refused(&r, STATUS_BAD_INPUT, "ctx = 32769");
    r = plain_request();
    r.n_sequences = 0;
    assert_refused(&r, STATUS_BAD_INPUT, "sequences = 0");
}

static void a_context_left_open_takes_what_memory_allows(void **state) {
    (void)state;
    plan_request r = plain_request();
    memory_plan plan;
    r.n_context = 0;
    r.ram_bytes = (uint64_t)8192 * MIB;
    make(&plan, &r);
    assert_int_equal(plan.n_context, config.n_context);
    r.ram_bytes = 120 * MIB;
    make(&plan, &r);
    assert_true(plan.n_context < config.n_context);
}

static void a_small_chunk_becomes_one_delta_net_chunk(void **state) {
    (void)state;
    plan_request r = plain_request();
    memory_plan plan;
    r.chunk_tokens = 1;
    make(&plan, &r);
    assert_int_equal(plan.chunk_tokens, 64);
    r.chunk_tokens = 200;
    make(&plan, &r);
    assert_int_equal(plan.chunk_tokens, 192);
}

static void pages_of_the_35b_have_the_known_size(void **state) {
    (void)state;
    model_config c = {.n_full_layers = 10, .n_kv_heads = 2, .head_dim = 256};
    assert_int_equal(plan_page_bytes(&c, KV_F32), 64 * 40960);
    assert_int_equal(plan_page_bytes(&c, KV_F16), 64 * 20480);
    assert_int_equal(plan_page_bytes(&c, KV_Q8), 64 * 10880);
    assert_int_equal(plan_page_bytes(&c, KV_Q4), 64 * 6400);
}

static void the_text_names_every_part(void **state) {
    (void)state;
    plan_request r = plain_request();
    memory_plan plan;
    char text[2048], cut[64];
    make(&plan, &r);
    size_t length = plan_print(&plan, text, sizeof text);
    assert_int_equal(length, strlen(text));
    for (size_t i = 0; i < plan.n_lines; i++)
        assert_non_null(strstr(text, plan.lines[i].part));
    assert_non_null(strstr(text, "context 4096 tokens, 4 sequences"));
    assert_int_equal(plan_print(&plan, cut, sizeof cut), length);
    assert_int_equal(strlen(cut), sizeof cut - 1);
}

static void the_kernels_texts_are_read(void **state) {
    (void)state;
    const char *meminfo = "MemTotal:       100 kB\nMemAvailable:   64 kB\nMemAvail:  1 kB\n";
    assert_int_equal(host_ram_parse_kb(meminfo, "MemAvailable"), 65536);
    assert_int_equal(host_ram_parse_kb(meminfo, "MemFree"), UINT64_MAX);
    assert_int_equal(host_ram_parse_kb("", "MemFree"), UINT64_MAX);
    assert_int_equal(host_ram_parse_stat("anon 5\nfile_mapped 7\nfile 9\n", "file"), 9);
    assert_int_equal(host_ram_parse_stat("anon 5\n", "file"), 0);
    uint64_t available = host_ram_available_bytes();
    assert_true(available > MIB && available < (uint64_t)1 << 60);
    assert_true(host_ram_used_bytes() > 0);
}

/* --- on a GPU --- */

static plan_request gpu_request(uint64_t vram_mib) {
    plan_request r = plain_request();
    r.backend = BACKEND_CUDA;
    r.vram_bytes = vram_mib * MIB;
    return r;
}

static uint64_t vram_of(const memory_plan *plan) {
    uint64_t sum = 0;
    for (size_t i = 0; i < plan->n_lines; i++) {
        if (plan->lines[i].place == PLAN_VRAM || plan->lines[i].place == PLAN_DRIVER)
            sum += plan->lines[i].bytes;
    }
    return sum;
}

static void a_model_without_pages_is_refused(void **state) {
    (void)state;
    error err = {0};
    memory_plan plan;
    model_config odd = config;
    odd.n_full_layers = 0;
    for (int gpu = 0; gpu < 2; gpu++) {
        plan_request r = plain_request();
        r.kv = KV_Q8;
        r.backend = gpu ? BACKEND_CUDA : BACKEND_CPU;
        r.vram_bytes = 400 * MIB;
        assert_int_equal(plan_make(&plan, &odd, &weights, &r, &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, "0 full layers"));
    }
}

static void parked_sequences_have_a_bound_that_counts(void **state) {
    (void)state;
    error err = {0};
    plan_request r = plain_request();
    memory_plan plan;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_adds_up(&plan, &r);
    uint64_t least = model_config_state_bytes(&config) +
                     4096 / MODEL_PAGE_TOKENS * plan_page_bytes(&config, KV_F16);
    assert_true(plan.park_bytes >= 4 * least); /* all four, in so much RAM */
    assert_int_equal(plan.park_bytes, bytes_of(&plan, "parked sequences"));
    r.park_bytes = 12345678;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_adds_up(&plan, &r);
    assert_int_equal(plan.park_bytes, 12345678);
    r.park_bytes = (int64_t)5000 * MIB;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "park_mib = 5000"));
}

/* The card's steps of 2 MiB are the only ones that stay free. */
static void a_card_gets_as_many_slots_as_fit_and_not_a_byte_more(void **state) {
    (void)state;
    error err = {0};
    bool partly = false;
    for (uint64_t vram = 60; vram <= 400; vram += 3) {
        plan_request r = gpu_request(vram);
        memory_plan plan;
        r.knows_driver = vram % 2 == 0;
        r.driver_bytes = 21 * MIB + 4711;
        if (plan_make(&plan, &config, &weights, &r, &err) != STATUS_OK) continue;
        assert_true(plan.vram_needed_bytes <= r.vram_bytes);
        assert_int_equal(vram_of(&plan), plan.vram_needed_bytes);
        assert_true(plan.n_slots >= config.n_layers * config.n_experts_used);
        bool all = plan.n_slots == plan.n_experts_total;
        partly = partly || !all;
        uint64_t slot = bytes_of(&plan, "expert slots") / plan.n_slots;
        if (!all) assert_true(r.vram_bytes - plan.vram_needed_bytes < slot + 2 * 2 * MIB);
        uint64_t arena = plan.vram_needed_bytes - bytes_of(&plan, "driver");
        assert_int_equal(arena % (2 * MIB), 0);
    }
    assert_true(partly);
}

static bool has_line(const memory_plan *plan, const char *part) {
    bool has = false;
    for (size_t i = 0; i < plan->n_lines; i++)
        has = has || strcmp(plan->lines[i].part, part) == 0;
    return has;
}

/* Where every expert has a slot nobody needs a lane. */
static void the_cpu_lane_takes_room_for_a_steps_rows(void **state) {
    (void)state;
    error err = {0};
    memory_plan plan;
    plan_request r = gpu_request(400);
    r.n_slots = 64;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_false(has_line(&plan, "CPU lane"));
    uint64_t without = plan.needed_bytes;
    r.has_lane = true;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    uint64_t outputs = plan.max_rows * (uint64_t)config.n_experts_used * config.n_embd * 4;
    assert_true(bytes_of(&plan, "CPU lane") > outputs);
    assert_true(plan.needed_bytes >= without + bytes_of(&plan, "CPU lane"));
    r.n_slots = (int64_t)plan.n_experts_total;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_false(has_line(&plan, "CPU lane"));
}

static void what_the_driver_takes_is_planned_as_measured(void **state) {
    (void)state;
    error err = {0};
    memory_plan plan;
    plan_request r = gpu_request(400);
    r.n_slots = 64;
    r.n_context = 1024;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    uint64_t estimate = bytes_of(&plan, "driver"), others = plan.vram_needed_bytes - estimate;
    assert_int_equal(estimate, 25 * MIB); /* a sixteenth */
    r.knows_driver = true;
    r.driver_bytes = 101 * MIB;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_int_equal(bytes_of(&plan, "driver"), (102 + 8) * MIB); /* room for graphs */
    assert_int_equal(plan.vram_needed_bytes, others + (102 + 8) * MIB);
    r.has_lane = true; /* steps of more graphs */
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_int_equal(bytes_of(&plan, "driver"), (102 + 16) * MIB);
    r.has_lane = false;
    r.draft_vram_bytes = 3 * MIB; /* and kernels of its own */
    r.kernel_bytes = 1 * MIB;
    assert_int_equal(plan_make(&plan, &config, &weights, &r, &err), STATUS_OK);
    assert_int_equal(bytes_of(&plan, "draft model"), (4 + 2) * MIB);
    r.vram_bytes = plan.vram_needed_bytes - 1; /* fixed slots give nothing away */
    assert_refused(&r, STATUS_NO_MEMORY, "64 expert slots");
}

static void a_card_that_is_too_small_is_refused_with_both_sizes(void **state) {
    (void)state;
    plan_request r = gpu_request(32);
    assert_refused(&r, STATUS_NO_MEMORY, "VRAM");
    r.n_slots = 256;
    r.vram_bytes = (uint64_t)60 * MIB;
    assert_refused(&r, STATUS_NO_MEMORY, "256 expert slots");
}

/* Experts in VRAM, in pinned RAM and on disk, parked sequences and prompts' beginnings. */
static void the_longest_plan_has_room_for_its_lines(void **state) {
    (void)state;
    plan_request r = gpu_request(100);
    memory_plan plan;
    error err = {0};
    char text[4096];
    r.n_slots = 64;
    r.park_bytes = -1;
    r.prefix_ram_mib = -1;
    if (plan_make(&plan, &config, &weights, &r, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(bytes_of(&plan, "expert records") > 0);
    assert_true(bytes_of(&plan, "parked sequences") > 0);
    assert_true(bytes_of(&plan, "prompt prefixes") > 0);
    assert_true(plan_print(&plan, text, sizeof text) < sizeof text);
}

/* What is asked for stays as it is; what is left is used for larger pieces. */
static void a_chunk_left_to_choose_is_the_largest_with_room(void **state) {
    (void)state;
    memory_plan plan, smaller;
    plan_request r = plain_request();
    r.chunk_tokens = 0;
    make(&plan, &r);
    assert_int_equal(plan.chunk_tokens, 512); /* on the CPU */
    r.backend = BACKEND_CUDA;
    r.n_slots = 64;
    r.vram_bytes = (uint64_t)2048 * MIB;
    r.knows_driver = true;
    r.driver_bytes = (uint64_t)500 * MIB;
    plan_on_card(&plan, &r);
    assert_int_equal(plan.chunk_tokens, 2048);
    for (uint32_t chunk = 1024; chunk >= 512; chunk /= 2) {
        r.chunk_tokens = chunk;
        plan_on_card(&smaller, &r);
        plan_request tight = r;
        tight.vram_bytes = smaller.vram_needed_bytes + MIB;
        tight.chunk_tokens = 0;
        plan_on_card(&plan, &tight);
        assert_int_equal(plan.chunk_tokens, chunk);
        assert_int_equal(plan.n_slots, 64);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model_is_planned_as_asked),
        cmocka_unit_test(slots_take_the_largest_expert_each),
        cmocka_unit_test(slots_below_one_tokens_working_set_are_refused),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_numbers),
        cmocka_unit_test(experts_beyond_memory_stay_on_disk),
        cmocka_unit_test(contexts_out_of_range_are_refused),
        cmocka_unit_test(a_context_left_open_takes_what_memory_allows),
        cmocka_unit_test(a_small_chunk_becomes_one_delta_net_chunk),
        cmocka_unit_test(pages_of_the_35b_have_the_known_size),
        cmocka_unit_test(the_text_names_every_part),
        cmocka_unit_test(the_kernels_texts_are_read),
        cmocka_unit_test(a_model_without_pages_is_refused),
        cmocka_unit_test(parked_sequences_have_a_bound_that_counts),
        cmocka_unit_test(a_card_gets_as_many_slots_as_fit_and_not_a_byte_more),
        cmocka_unit_test(the_cpu_lane_takes_room_for_a_steps_rows),
        cmocka_unit_test(what_the_driver_takes_is_planned_as_measured),
        cmocka_unit_test(the_longest_plan_has_room_for_its_lines),
        cmocka_unit_test(a_card_that_is_too_small_is_refused_with_both_sizes),
        cmocka_unit_test(a_chunk_left_to_choose_is_the_largest_with_room),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
