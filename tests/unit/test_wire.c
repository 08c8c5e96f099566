/* test_wire.c - every message there and back, and every way a frame can be wrong. */
#include "common/wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEXT(literal)                                                                          \
    { literal, sizeof(literal) - 1 }

static const int32_t sample_ids[] = {0, 1, 127, 128, 65536, INT32_MAX};
static const uint64_t sample_hashes[] = {0, 1, UINT64_MAX};
static const wire_model sample_models[] = {
    {TEXT("qwen"), TEXT("0123456789abcdef0123456789abcdef"), TEXT("qwen35moe"), TEXT("cpu-f32"),
     262144},
    {TEXT("other"), TEXT(""), TEXT("qwen35"), TEXT("cpu-q8"), 4096},
};

static const wire_message samples[] = {
    {.type = WIRE_HELLO,
     .hello = {TEXT("node-a"), 7, TEXT("abc123"), TEXT("home"), TEXT("cpu"), TEXT(""), 0, 64000,
               96, 2560, 8, 4, 6, 512.5, 33.25, sample_models, 2}},
    {.type = WIRE_BEAT,
     .beat = {9,
              7,
              WIRE_LOADING,
              TEXT("weights"),
              420,
              12,
              1,
              2,
              3,
              40,
              50,
              6,
              -1.0,
              0.5,
              100.0,
              20.0,
              -1.0,
              75.5,
              1,
              2,
              3,
              1500,
              42000,
              35,
              0x5,
              2,
              7,
              8,
              9,
              2000,
              40,
              12,
              6,
              3,
              2,
              1,
              55,
              44}},
    {.type = WIRE_TOKENS,
     .tokens = {11, 2, 0, 3, WIRE_REASONING, sample_ids, 6, TEXT("gr\303\274n"),
                WIRE_FLAG_GRACE, WIRE_FINISH_LENGTH, TEXT("[]"), 77, 100, 64, 5, TEXT("f")}},
    {.type = WIRE_DONE,
     .done = {11, 2, 5, 100, 64, 30, 10, 0.25, 80.0, 900.0, 0.97, 1.5, sample_hashes, 3,
              TEXT("{}"), sample_hashes, 1}},
    {.type = WIRE_ERROR,
     .error = {11, 2, 503, TEXT("busy"), TEXT("model"), TEXT("all sequences are taken"), true}},
    {.type = WIRE_BYE, .bye = {7, TEXT("drained")}},
    {.type = WIRE_WELCOME, .welcome = {TEXT("coordinator-1"), 99, TEXT("abc123"), 1000}},
    {.type = WIRE_SUBMIT,
     .submit = {11,
                2,
                WIRE_COMPLETION,
                TEXT("cmpl-1"),
                TEXT("qwen"),
                TEXT("{\"prompt\":\"a\"}"),
                60000,
                1,
                {sample_ids, 6, WIRE_TOOL_CALL, 1, 2, 3},
                1234567,
                sample_hashes,
                3}},
    {.type = WIRE_CANCEL, .cancel = {UINT64_MAX, 2}},
    {.type = WIRE_DRAIN, .drain = {300000, true}},
    {.type = WIRE_ACK, .ack = {9}},
};
enum { N_SAMPLES = sizeof samples / sizeof samples[0] };

static bool same_bytes(wire_bytes a, wire_bytes b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.bytes, b.bytes, a.length) == 0);
}

static void every_message_comes_back_as_it_was(void **state) {
    (void)state;
    wire_frame first = {0}, second = {0};
    for (size_t i = 0; i < N_SAMPLES; i++) {
        error err;
        wire_message got;
        assert_int_equal(wire_encode(&first, &samples[i], &err), STATUS_OK);
        assert_int_equal(wire_decode(&got, first.bytes, first.length, &err), STATUS_OK);
        assert_int_equal(got.type, samples[i].type);
        assert_int_equal(wire_encode(&second, &got, &err), STATUS_OK);
        assert_int_equal(first.length, second.length);
        assert_memory_equal(first.bytes, second.bytes, first.length);
        wire_release(&got);
    }
    wire_frame_release(&first);
    wire_frame_release(&second);
}

static void fields_arrive_in_their_places(void **state) {
    (void)state;
    wire_frame frame = {0};
    wire_message got;
    assert_int_equal(wire_encode(&frame, &samples[7], NULL), STATUS_OK);
    assert_int_equal(wire_decode(&got, frame.bytes, frame.length, NULL), STATUS_OK);
    const wire_submit *want = &samples[7].submit, *submit = &got.submit;
    assert_int_equal(submit->request, 11);
    assert_int_equal(submit->epoch, 2);
    assert_int_equal(submit->kind, WIRE_COMPLETION);
    assert_true(same_bytes(submit->body, want->body));
    assert_int_equal(submit->deadline_ms, 60000);
    assert_int_equal(submit->priority, 1);
    assert_int_equal(submit->resume.n_ids, 6);
    assert_memory_equal(submit->resume.ids, sample_ids, sizeof sample_ids);
    assert_int_equal(submit->resume.channel, WIRE_TOOL_CALL);
    assert_int_equal(submit->resume.sampler_counter, 3);
    wire_release(&got);
    assert_int_equal(wire_encode(&frame, &samples[0], NULL), STATUS_OK);
    assert_int_equal(wire_decode(&got, frame.bytes, frame.length, NULL), STATUS_OK);
    assert_int_equal(got.hello.n_models, 2);
    assert_true(same_bytes(got.hello.models[1].name, sample_models[1].name));
    assert_int_equal(got.hello.models[0].context_tokens, 262144);
    assert_true(got.hello.prior_decode_tok_per_s == 33.25);
    assert_int_equal(got.hello.credit, 6);
    wire_release(&got);
    wire_frame_release(&frame);
}

/* The copy has its exact size, so that a sanitizer sees any read past the end. */
static void a_frame_cut_at_any_byte_is_refused(void **state) {
    (void)state;
    wire_frame frame = {0};
    for (size_t i = 0; i < N_SAMPLES; i++) {
        assert_int_equal(wire_encode(&frame, &samples[i], NULL), STATUS_OK);
        for (size_t length = 0; length < frame.length; length++) {
            char *cut = malloc(length + (length == 0));
            assert_non_null(cut);
            memcpy(cut, frame.bytes, length);
            wire_message got;
            error err;
            assert_int_equal(wire_decode(&got, cut, length, &err), STATUS_BAD_INPUT);
            free(cut);
        }
    }
    wire_frame_release(&frame);
}

static void bytes_after_the_message_are_refused(void **state) {
    (void)state;
    const char frame[] = "\x93\x01\x14\x09\x00";
    wire_message got;
    error err;
    assert_int_equal(wire_decode(&got, frame, 4, &err), STATUS_OK);
    wire_release(&got);
    assert_int_equal(wire_decode(&got, frame, 5, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "1 bytes after"));
}

static void unknown_trailing_fields_are_ignored(void **state) {
    (void)state;
    const char frame[] =
        "\x96\x01\x14\x09\xc0\x92\x01\xa1x\xc3"; /* ACK 9, then nil, [1, "x"], true */
    wire_message got;
    assert_int_equal(wire_decode(&got, frame, sizeof frame - 1, NULL), STATUS_OK);
    assert_int_equal(got.type, WIRE_ACK);
    assert_int_equal(got.ack.number, 9);
    wire_release(&got);
}

/* What an older build sends: the appended fields are not there. */
static void appended_fields_that_do_not_come_are_zero(void **state) {
    (void)state;
    static const struct {
        size_t sample, n_appended, n_bytes; /* of the sample's last fields */
    } cases[] = {{1, 16, 20}, {3, 1, 2}, {2, 5, 3 + 3}, {7, 2, 5 + 12}};
    wire_frame frame = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wire_message got;
        error err = {0};
        assert_int_equal(wire_encode(&frame, &samples[cases[i].sample], NULL), STATUS_OK);
        char *bytes = frame.bytes;
        bool is_long = (unsigned char)bytes[0] == 0xdc; /* array 16: count in the third byte */
        char *count = is_long ? &bytes[2] : &bytes[0];
        size_t n_bytes = cases[i].n_bytes, n_fields = cases[i].n_appended;
        *count = (char)(*count - (char)n_fields);
        assert_int_equal(wire_decode(&got, bytes, frame.length - n_bytes, &err), STATUS_OK);
        if (got.type == WIRE_BEAT) assert_int_equal(got.beat.loading_left_ms, 0);
        if (got.type == WIRE_TOKENS) {
            assert_int_equal(got.tokens.draws, 0);
            assert_int_equal(got.tokens.prompt_tokens, 0);
        }
        if (got.type == WIRE_SUBMIT) {
            assert_int_equal(got.submit.resume.sampler_counter, 3);
            assert_int_equal(got.submit.seed, 0);
            assert_int_equal(got.submit.n_boundaries, 0);
        }
        wire_release(&got);
    }
    wire_frame_release(&frame);
}

static void another_version_is_refused_with_both_versions(void **state) {
    (void)state;
    const char *const frames[] = {"\x93\x02\x14\x09", "\x93\xcd\x01\x2c\x81\x01\x02\x03"};
    const size_t lengths[] = {4, 8};
    const char *const said[] = {"version 2,", "version 300,"};
    for (size_t i = 0; i < 2; i++) {
        wire_message got;
        error err;
        assert_int_equal(wire_decode(&got, frames[i], lengths[i], &err), STATUS_BAD_INPUT);
        assert_non_null(strstr(err.text, said[i]));
        assert_non_null(strstr(err.text, "speaks version 1"));
    }
}

typedef struct bad_frame {
    const char *bytes;
    size_t length;
    const char *said; /* part of the error's text */
} bad_frame;
#define BAD(bytes, said)                                                                       \
    { bytes, sizeof(bytes) - 1, said }

static void wrong_frames_are_refused_by_message_and_field(void **state) {
    (void)state;
    static const bad_frame cases[] = {
        BAD("", "no array"),
        BAD("\x01", "no array"),
        BAD("\x91\x01", "no array"),
        BAD("\x93\xa1x\x14\x09", "version is no whole number"),
        BAD("\x93\x01\x63\x09", "type 99"),
        BAD("\x93\x01\xa1x\x09", "unknown"),
        BAD("\x92\x01\x14", "ACK.number: is missing"),
        BAD("\x93\x01\x14\xa1x", "ACK.number: is no whole number"),
        BAD("\x93\x01\x14\xff", "ACK.number: is no whole number"),
        BAD("\x94\x01\x13\x01\x01", "DRAIN.resume: is no boolean"),
        BAD("\x94\x01\x06\x01\x02", "BYE.reason: is no text"),
        BAD("\x99\x01\x05\x01\x01\xcd\x03\xe8\xa0\xa0\xa0\xc2", "ERROR.http_status: 1000"),
        BAD("\x93\x01\x14\x81\x01\x02", "map or extension"),
        BAD("\x93\x01\x14\xd4\x01\x02", "map or extension"),
        BAD("\x93\x01\x14\xc1", "map or extension"),
        BAD("\x93\x01\x14\x91\x91\x91\x91\x91\x91\x91\x01", "nests deeper"),
        BAD("\xdd\xff\xff\xff\xff\x01\x14", "claims a size"),
        BAD("\x93\x01\x14\xdd\xff\xff\xff\xff", "claims a size"),
        BAD("\x93\x01\x14\xdb\xff\xff\xff\xff", "claims a size"),
        BAD("\x93\x01\x14\xcb\x01", "claims a size"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wire_message got;
        error err = {0};
        assert_int_equal(wire_decode(&got, cases[i].bytes, cases[i].length, &err),
                         STATUS_BAD_INPUT);
        if (strstr(err.text, cases[i].said) == NULL) {
            fail_msg("case %zu says \"%s\", not \"%s\"", i, err.text, cases[i].said);
        }
    }
}

/* 1.1 million items that are really there: msgpack-c would take 26 MB for them. */
static void too_many_items_are_refused(void **state) {
    (void)state;
    size_t n = WIRE_MAX_IDS + 100000, head = 3 + 5;
    char *frame = calloc(1, head + n);
    assert_non_null(frame);
    const unsigned char opening[] = {0x93, 0x01, 0x14, 0xdd, 0x00};
    memcpy(frame, opening, sizeof opening);
    frame[5] = (char)(n >> 16);
    frame[6] = (char)(n >> 8);
    frame[7] = (char)n;
    wire_message got;
    error err;
    assert_int_equal(wire_decode(&got, frame, head + n, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "items"));
    free(frame);
}

static void the_encoder_refuses_what_the_decoder_would(void **state) {
    (void)state;
    wire_frame frame = {0};
    error err;
    char *big = calloc(1, WIRE_MAX_BODY + 1);
    assert_non_null(big);
    wire_message m = samples[7];
    m.submit.body = wire_text(big, WIRE_MAX_BODY + 1);
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "SUBMIT.body"));
    m.submit.body = wire_text(big, WIRE_MAX_BODY);
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_OK);
    wire_message got;
    assert_int_equal(wire_decode(&got, frame.bytes, frame.length, &err), STATUS_OK);
    assert_int_equal(got.submit.body.length, WIRE_MAX_BODY);
    wire_release(&got);
    free(big);

    m = samples[2];
    const int32_t negative[] = {3, -1};
    m.tokens.ids = negative;
    m.tokens.n_ids = 2;
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "TOKENS.ids"));
    m = samples[2];
    m.tokens.choice = WIRE_MAX_CHOICES;
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_BAD_INPUT);
    m = samples[1];
    m.beat.hit_rate = (double)NAN;
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "BEAT.hit_rate"));
    m = samples[1];
    m.beat.state = (wire_worker_state)0;
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_BAD_INPUT);
    m.type = (wire_type)77;
    assert_int_equal(wire_encode(&frame, &m, &err), STATUS_BAD_INPUT);
    wire_frame_release(&frame);
}

static void the_longest_list_of_ids_fits(void **state) {
    (void)state;
    int32_t *ids = calloc(WIRE_MAX_IDS, sizeof *ids);
    assert_non_null(ids);
    for (int32_t i = 0; i < WIRE_MAX_IDS; i++)
        ids[i] = i;
    wire_frame frame = {0};
    wire_message m = samples[7], got;
    m.submit.resume.ids = ids;
    m.submit.resume.n_ids = WIRE_MAX_IDS;
    assert_int_equal(wire_encode(&frame, &m, NULL), STATUS_OK);
    assert_int_equal(wire_decode(&got, frame.bytes, frame.length, NULL), STATUS_OK);
    assert_int_equal(got.submit.resume.n_ids, WIRE_MAX_IDS);
    assert_memory_equal(got.submit.resume.ids, ids, WIRE_MAX_IDS * sizeof *ids);
    wire_release(&got);
    wire_frame_release(&frame);
    free(ids);
}

static void message_types_have_names(void **state) {
    (void)state;
    assert_string_equal(wire_type_name(WIRE_HELLO), "HELLO");
    assert_string_equal(wire_type_name(WIRE_ACK), "ACK");
    assert_string_equal(wire_type_name((wire_type)77), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_was),
        cmocka_unit_test(fields_arrive_in_their_places),
        cmocka_unit_test(a_frame_cut_at_any_byte_is_refused),
        cmocka_unit_test(bytes_after_the_message_are_refused),
        cmocka_unit_test(unknown_trailing_fields_are_ignored),
        cmocka_unit_test(appended_fields_that_do_not_come_are_zero),
        cmocka_unit_test(another_version_is_refused_with_both_versions),
        cmocka_unit_test(wrong_frames_are_refused_by_message_and_field),
        cmocka_unit_test(too_many_items_are_refused),
        cmocka_unit_test(the_encoder_refuses_what_the_decoder_would),
        cmocka_unit_test(the_longest_list_of_ids_fits),
        cmocka_unit_test(message_types_have_names),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
