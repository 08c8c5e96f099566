/* test_embedding_job.c - bodies for vectors and relevances become parameters, or are refused. */
#include "worker/embedding_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 100, N_EMBD = 256 };

static embedding_job parse_ok(wire_kind kind, const char *body) {
    embedding_job j;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    status rc = embedding_job_parse(&j, kind, body, strlen(body), N_VOCAB, N_EMBD, param, &err);
    if (rc != STATUS_OK) fail_msg("%s", err.text);
    return j;
}

static void assert_refused(wire_kind kind, const char *body, uint32_t n_embd, const char *field,
                           const char *text) {
    embedding_job j;
    error err = {0};
    char param[CHAT_PARAM_SIZE];
    assert_int_equal(
        embedding_job_parse(&j, kind, body, strlen(body), N_VOCAB, n_embd, param, &err),
        STATUS_BAD_INPUT);
    assert_string_equal(param, field);
    if (strstr(err.text, text) == NULL) fail_msg("'%s' is not in '%s'", text, err.text);
}

static void a_silent_request_gets_whole_vectors_of_floats(void **state) {
    (void)state;
    embedding_job j = parse_ok(WIRE_EMBED, "{\"input\":[\"a\",[1,99]],\"dimensions\":null}");
    assert_int_equal(j.n_inputs, 2);
    assert_int_equal(j.n_dimensions, N_EMBD);
    assert_false(j.base64);
    embedding_job_release(&j);
}

static void dimensions_and_base64_are_taken(void **state) {
    (void)state;
    embedding_job j = parse_ok(
        WIRE_EMBED, "{\"input\":[\"a\"],\"dimensions\":8,\"encoding_format\":\"base64\"}");
    assert_int_equal(j.n_dimensions, 8);
    assert_true(j.base64);
    embedding_job_release(&j);
}

static void a_ranking_has_an_instruction_and_all_its_documents(void **state) {
    (void)state;
    embedding_job j = parse_ok(WIRE_RERANK, "{\"query\":\"q\",\"documents\":[\"a\",\"b\"]}");
    assert_non_null(strstr(j.instruction, "web search query"));
    assert_int_equal(j.n_top, 2);
    assert_false(j.returns_documents);
    embedding_job_release(&j);
    j = parse_ok(WIRE_RERANK,
                 "{\"query\":\"q\",\"documents\":[\"a\",\"b\"],\"top_n\":1,\"instruction\":"
                 "\"i\",\"return_documents\":true}");
    assert_string_equal(j.instruction, "i");
    assert_int_equal(j.n_top, 1);
    assert_true(j.returns_documents);
    embedding_job_release(&j);
    j = parse_ok(WIRE_RERANK, "{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":9}");
    assert_int_equal(j.n_top, 1);
    embedding_job_release(&j);
}

static void what_is_wrong_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        wire_kind kind;
        const char *body, *field, *text;
    } cases[] = {
        {WIRE_EMBED, "[]", "", "JSON object"},
        {WIRE_EMBED, "{}", "input", "missing"},
        {WIRE_EMBED, "{\"input\":\"a\"}", "input", "list"},
        {WIRE_EMBED, "{\"input\":[]}", "input", "list"},
        {WIRE_EMBED, "{\"input\":[{}]}", "input", "must be a string or"},
        {WIRE_EMBED, "{\"input\":[\"a\",[1,100]]}", "input[1]", "of this model"},
        {WIRE_EMBED, "{\"input\":[\"a\",[0.5]]}", "input[1]", "of this model"},
        {WIRE_EMBED, "{\"input\":[\"a\"],\"dimensions\":257}", "dimensions", "1 to 256"},
        {WIRE_EMBED, "{\"input\":[\"a\"],\"dimensions\":0}", "dimensions", "1 to 256"},
        {WIRE_EMBED, "{\"input\":[\"a\"],\"dimensions\":1.5}", "dimensions", "1 to 256"},
        {WIRE_EMBED, "{\"input\":[\"a\"],\"encoding_format\":\"hex\"}", "encoding_format",
         "float or base64"},
        {WIRE_RERANK, "{\"documents\":[\"a\"]}", "query", "missing"},
        {WIRE_RERANK, "{\"query\":1,\"documents\":[\"a\"]}", "query", "string"},
        {WIRE_RERANK, "{\"query\":\"q\"}", "documents", "missing"},
        {WIRE_RERANK, "{\"query\":\"q\",\"documents\":[\"a\",[1]]}", "documents[1]", "string"},
        {WIRE_RERANK, "{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":0}", "top_n", "1 to"},
        {WIRE_RERANK, "{\"query\":\"q\",\"documents\":[\"a\"],\"instruction\":2}",
         "instruction", "string"},
        {WIRE_RERANK, "{\"query\":\"q\",\"documents\":[\"a\"],\"return_documents\":1}",
         "return_documents", "true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(cases[i].kind, cases[i].body, N_EMBD, cases[i].field, cases[i].text);
}

/* {"input":["a", ...]REST} with n texts; the caller frees. */
static char *many(size_t n, const char *rest) {
    json_text body = {0};
    json_text_format(&body, "{\"input\":[");
    for (size_t i = 0; i < n; i++)
        json_text_format(&body, "%s\"a\"", i > 0 ? "," : "");
    json_text_format(&body, "]%s}", rest);
    return body.bytes;
}

static void more_inputs_than_the_api_takes_are_refused(void **state) {
    (void)state;
    char *body = many(EMBEDDING_MAX_INPUTS, ""),
         *longer = many((size_t)EMBEDDING_MAX_INPUTS + 1, "");
    embedding_job j = parse_ok(WIRE_EMBED, body);
    assert_int_equal(j.n_inputs, EMBEDDING_MAX_INPUTS);
    embedding_job_release(&j);
    assert_refused(WIRE_EMBED, longer, N_EMBD, "input", "more than 2048");
    free(longer);
    free(body);
}

/* 2,048 vectors of 2,560 numbers fit as base64, not as decimal floats; of 5,120 not at all. */
static void an_answer_beyond_the_wires_bound_is_refused_before_it_runs(void **state) {
    (void)state;
    char *floats = many(EMBEDDING_MAX_INPUTS, "");
    char *base64 = many(EMBEDDING_MAX_INPUTS, ",\"encoding_format\":\"base64\"");
    char param[CHAT_PARAM_SIZE];
    embedding_job j;
    error err = {0};
    assert_refused(WIRE_EMBED, floats, 2560, "input", "ask for base64 or send fewer");
    assert_int_equal(
        embedding_job_parse(&j, WIRE_EMBED, base64, strlen(base64), N_VOCAB, 2560, param, &err),
        STATUS_OK);
    embedding_job_release(&j);
    assert_refused(WIRE_EMBED, base64, 5120, "input", "room for 33554432: send fewer");
    free(base64);
    free(floats);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_request_gets_whole_vectors_of_floats),
        cmocka_unit_test(dimensions_and_base64_are_taken),
        cmocka_unit_test(a_ranking_has_an_instruction_and_all_its_documents),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(more_inputs_than_the_api_takes_are_refused),
        cmocka_unit_test(an_answer_beyond_the_wires_bound_is_refused_before_it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
