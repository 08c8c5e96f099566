/* test_upstream_reply.c - what other servers send: events however they are cut, chunks, models; and
 * what they are sent. */
#include "coordinator/sse_reader.h"
#include "coordinator/tailscale.h"
#include "coordinator/upstream_config.h"
#include "coordinator/upstream_reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct heard {
    char text[2000];
    upstream_reply reply;
} heard;

static void note(heard *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(heard *h, const char *format, ...) {
    size_t n = strlen(h->text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(h->text + n, sizeof h->text - n, format, args);
    va_end(args);
}

static status on_data(void *context, const char *data, size_t n, error *err) {
    (void)err;
    note(context, "[%.*s]", (int)n, data);
    return STATUS_OK;
}

static void events_are_the_same_however_they_are_cut(void **state) {
    (void)state;
    static const char stream[] =
        ": hello\n\ndata: one\n\ndata:two\r\n\r\nevent: x\rdata: a\rdata: b\r\r"
        "id: 7\n\ndata\n\ndata: \n\nretry: 5\ndata: last\n\ndata: cut";
    for (size_t step = 1; step < sizeof stream; step++) {
        heard h = {.text = ""};
        sse_reader reader = {.has_data = false};
        for (size_t at = 0; at < sizeof stream - 1; at += step) {
            size_t n = sizeof stream - 1 - at < step ? sizeof stream - 1 - at : step;
            assert_int_equal(sse_reader_add(&reader, stream + at, n, &h, on_data, NULL),
                             STATUS_OK);
        }
        assert_string_equal(h.text, "[one][two][a\nb][][last]");
        sse_reader_release(&reader);
    }
}

static void an_event_over_the_bound_is_an_error(void **state) {
    (void)state;
    heard h = {.text = ""};
    sse_reader reader = {.has_data = false};
    char piece[65536];
    memset(piece, 'x', sizeof piece);
    error err = {0};
    status rc = STATUS_OK;
    for (size_t i = 0; rc == STATUS_OK; i++) {
        assert_true(i * sizeof piece <= SSE_MAX_EVENT);
        rc = sse_reader_add(&reader, piece, sizeof piece, &h, on_data, &err);
    }
    assert_int_equal(rc, STATUS_BAD_INPUT);
    sse_reader_release(&reader);
}

static void on_piece(void *context, const upstream_piece *p) {
    static const char *const finishes[] = {"", "stop", "length", "tools"};
    note(context, "%llu%c%s(%.*s)%s%s ", (unsigned long long)p->choice, "crt"[p->channel],
         p -> call_name != NULL ? p -> call_name : "", (int)p->length,
         p->length > 0 ? p->text : "", finishes[p->finish], p->call_cut ? " cut" : "");
}

static status feed(heard *h, const char *chunk, error *err) {
    return upstream_reply_event(&h->reply, chunk, strlen(chunk), err);
}

static void chunks_become_pieces(void **state) {
    (void)state;
    heard h = {.text = ""};
    assert_int_equal(upstream_reply_init(&h.reply, 2, &h, on_piece, NULL), STATUS_OK);
    const char *const chunks[] = {
        "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"}}],\"usage\":null}",
        "{\"choices\":[{\"index\":1,\"delta\":{\"reasoning\":\"oh\",\"content\":\"a\"}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}"
        "]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"late\"},\"finish_reason\":"
        "\"stop\"}]}",
        "{\"choices\":[{\"index\":1,\"text\":\"c\",\"finish_reason\":\"stop\"}]}",
        "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,"
        "\"prompt_tokens_details\":{\"cached_tokens\":9},\"completion_tokens_details\":null}}"};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
        assert_int_equal(feed(&h, chunks[i], NULL), STATUS_OK);
    assert_string_equal(h.text, "0r(hm) 1r(oh) 1c(a) 0c(b) 0c()length 1c(c) 1c()stop ");
    assert_true(upstream_reply_is_whole(&h.reply));
    assert_false(h.reply.done);
    assert_int_equal(feed(&h, "[DONE]", NULL), STATUS_OK);
    assert_true(h.reply.done);
    assert_int_equal(h.reply.prompt_tokens, 5);
    assert_int_equal(h.reply.cached_tokens, 5); /* never more than the prompt */
    upstream_reply_release(&h.reply);
}

/* All that is heard of a reply of one choice. */
static void assert_heard(const char *const *chunks, size_t n, const char *text) {
    heard h = {.text = ""};
    assert_int_equal(upstream_reply_init(&h.reply, 1, &h, on_piece, NULL), STATUS_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(feed(&h, chunks[i], NULL), STATUS_OK);
    assert_string_equal(h.text, text);
    upstream_reply_release(&h.reply);
}

static void fragments_of_tool_calls_come_whole(void **state) {
    (void)state;
    const char *const chunks[] = {
        "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"a\\\"\"}}]}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{"
        "\"arguments\":\":1}\"}},{\"index\":1,\"function\":{\"name\":\"g\"}}]}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}"};
    assert_heard(chunks, 3, "0tf({\"a\":1}) 0tg({}) 0c()tools ");
}

static void a_tool_call_that_a_limit_cut_is_not_given(void **state) {
    (void)state;
    const char *const chunks[] = {
        "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"a\\\"\"}}]}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}"};
    assert_heard(chunks, 2, "0c()length cut ");
}

static void what_makes_no_sense_is_an_error(void **state) {
    (void)state;
    const char *const wrong[] = {
        "",
        "{",
        "nonsense",
        "{\"choices\":[{\"index\":1}]}",
        "{\"choices\":[{\"index\":-1}]}",
        "{\"choices\":[{\"index\":0.5}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":64}]}}]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        heard h = {.text = ""};
        error err = {0};
        assert_int_equal(upstream_reply_init(&h.reply, 1, &h, on_piece, NULL), STATUS_OK);
        assert_int_equal(feed(&h, wrong[i], &err), STATUS_BAD_INPUT);
        assert_true(err.text[0] != '\0');
        upstream_reply_release(&h.reply);
    }
    /* Other kinds than expected say nothing. */
    heard h = {.text = ""};
    assert_int_equal(upstream_reply_init(&h.reply, 1, &h, on_piece, NULL), STATUS_OK);
    assert_int_equal(feed(&h, "[1,2]", NULL), STATUS_OK);
    assert_int_equal(feed(&h, "{\"choices\":{},\"usage\":[],\"error\":null}", NULL), STATUS_OK);
    assert_int_equal(feed(&h, "{\"choices\":[1,null,{\"delta\":5,\"finish_reason\":7}]}", NULL),
                     STATUS_OK);
    assert_string_equal(h.text, "");
    assert_int_equal(h.reply.error_status, 0);
    assert_int_equal(feed(&h, "{\"error\":{\"code\":503,\"message\":\"full\"}}", NULL),
                     STATUS_OK);
    assert_int_equal(h.reply.error_status, 503);
    assert_string_equal(h.reply.error_text, "full");
    upstream_reply_release(&h.reply);
}

static void a_request_is_sent_on_in_the_api_s_own_form(void **state) {
    (void)state;
    static const char body[] = "{\"model\":\"ours\",\"messages\":[{\"role\":\"assistant\","
                               "\"content\":\"\",\"tool_calls\":[{\"function\":"
                               "{\"name\":\"f\",\"arguments\":{\"n\":12345678901234567890}}}]}]"
                               ",\"n\":3,\"temperature\":0.70}";
    char *out = NULL;
    size_t n_choices = 0;
    assert_int_equal(
        upstream_request_body(&out, &n_choices, body, sizeof body - 1, "theirs", NULL),
        STATUS_OK);
    assert_int_equal(n_choices, 3);
    assert_non_null(strstr(out, "\"model\":\"theirs\""));
    assert_non_null(strstr(out, "\"stream\":true"));
    assert_non_null(strstr(out, "\"include_usage\":true"));
    assert_non_null(strstr(out, "\"arguments\":\"{\\\"n\\\":12345678901234567890}\""));
    assert_non_null(strstr(out, "0.70"));
    free(out);
}

static void models_of_several_servers_are_read(void **state) {
    (void)state;
    static const char text[] =
        "{\"data\":[{\"id\":\"a\",\"max_model_len\":100},{\"id\":\"b\",\"meta\":{\"n_ctx\":200}"
        "},{\"id\":\"c\","
        "\"meta\":{\"context_tokens\":300}},{\"id\":\"\"},{\"id\":5},{},7]}";
    upstream_model models[UPSTREAM_MAX_MODELS];
    size_t n = 0;
    error err = {0};
    assert_int_equal(upstream_read_models(models, &n, text, sizeof text - 1, NULL), STATUS_OK);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(models[i].context_tokens, 100 * (i + 1));
    assert_int_equal(upstream_read_models(models, &n, "{}", 2, &err), STATUS_BAD_INPUT);
    assert_non_null(strstr(err.text, "data"));
}

static void a_configured_line_is_checked_word_by_word(void **state) {
    (void)state;
    static const struct {
        const char *line, *expected; /* NULL: it is well */
    } cases[] = {{"llama http://h:1", NULL},
                 {"llama https://h:1/v1/ models=a,b concurrent=2 context=8192", NULL},
                 {"llama", "expected NAME URL"},
                 {"llama ftp://h", "is not http://"},
                 {"llama http://user:secret@h/v1", "(hidden)"},
                 {"llama http:///v1", "is not http://"},
                 {"llama http://h concurrent=0", "concurrent: '0'"},
                 {"llama http://h context=-5", "context: '-5'"},
                 {"llama http://h key_env=SILICEO_NO_SUCH", "key_env: 'SILICEO_NO_SUCH'"},
                 {"llama http://h key_file=/nonexistent", "/nonexistent"},
                 {"llama http://h moon=1", "'moon' is no option"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[200];
        upstream_config *c;
        error err = {0};
        (void)snprintf(line, sizeof line, "%s", cases[i].line);
        status rc = upstream_config_parse(&c, line, &err);
        if (cases[i].expected == NULL) {
            assert_int_equal(rc, STATUS_OK);
            assert_true(strcmp(c->url, "http://h:1/v1") == 0 ||
                        strcmp(c->url, "https://h:1/v1") == 0);
            upstream_config_leave(c);
        } else {
            assert_int_not_equal(rc, STATUS_OK);
            assert_non_null(strstr(err.text, cases[i].expected));
            assert_null(strstr(err.text, "secret"));
        }
    }
}

static void tailscale_tells_direct_relayed_and_unknown(void **state) {
    (void)state;
    static const char text[] =
        "{\"Self\":{},\"Peer\":{\"nodekey:1\":{\"TailscaleIPs\":[\"100.64.0.1\",\"fd7a::1\"],"
        "\"CurAddr\":\"1.2.3.4:5\",\"Relay\":\"fra\",\"Active\":true},"
        "\"nodekey:2\":{\"TailscaleIPs\":[\"100.64.0.2\"],\"CurAddr\":\"\",\"Relay\":\"fra\","
        "\"Active\":true},"
        "\"nodekey:3\":{\"TailscaleIPs\":[\"100.64.0.3\"],\"CurAddr\":\"\",\"Relay\":\"fra\","
        "\"Active\":false},"
        "\"nodekey:4\":{\"TailscaleIPs\":null},\"nodekey:5\":7}}";
    tailscale_peer *peers = NULL;
    size_t n = 0;
    assert_int_equal(tailscale_read(&peers, &n, text, sizeof text - 1, NULL), STATUS_OK);
    assert_int_equal(n, 4);
    const tailscale_path expected[] = {TAILSCALE_DIRECT, TAILSCALE_DIRECT, TAILSCALE_RELAYED,
                                       TAILSCALE_UNKNOWN};
    for (size_t i = 0; i < n; i++)
        assert_int_equal(peers[i].path, expected[i]);
    assert_string_equal(peers[1].address, "fd7a::1");
    free(peers);
    const char *const others[] = {"{}", "[]", "{\"Peer\":[]}", "{\"Peer\":{}}"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(tailscale_read(&peers, &n, others[i], strlen(others[i]), NULL),
                         STATUS_OK);
        assert_int_equal(n, 0);
        free(peers);
    }
    assert_int_equal(tailscale_read(&peers, &n, "nonsense", 8, NULL), STATUS_BAD_INPUT);
    assert_null(peers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_the_same_however_they_are_cut),
        cmocka_unit_test(an_event_over_the_bound_is_an_error),
        cmocka_unit_test(chunks_become_pieces),
        cmocka_unit_test(fragments_of_tool_calls_come_whole),
        cmocka_unit_test(a_tool_call_that_a_limit_cut_is_not_given),
        cmocka_unit_test(what_makes_no_sense_is_an_error),
        cmocka_unit_test(a_request_is_sent_on_in_the_api_s_own_form),
        cmocka_unit_test(models_of_several_servers_are_read),
        cmocka_unit_test(a_configured_line_is_checked_word_by_word),
        cmocka_unit_test(tailscale_tells_direct_relayed_and_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
