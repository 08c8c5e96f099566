#include "worker/request.h"

#include "common/clock.h"
#include "worker/embedding.h"
#include "worker/request_format.h"
#include "worker/request_opening.h"
#include "worker/result.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- faults --- */

static status fault_set(request_fault *f, uint32_t http_status, const char *code, status rc) {
    f->http_status = http_status;
    f->code = code;
    return rc;
}

status request_fault_from(request_fault *f, status rc) {
    if (f->http_status != 0) return rc;
    if (rc == STATUS_BAD_INPUT) return fault_set(f, 400, "invalid_value", rc);
    if (rc == STATUS_NO_MEMORY) {
        f->retryable = true;
        return fault_set(f, 503, "out_of_memory", rc);
    }
    return fault_set(f, 500, "internal_error", rc);
}

static const char *prompt_field(const job *j) {
    return j->prompt != NULL ? "prompt" : "messages";
}

static status too_long(const request_context *c, const job *j, const char *at_least,
                       size_t n_tokens, uint32_t n_more, request_fault *f) {
    (void)snprintf(f->param, sizeof f->param, "%s", prompt_field(j));
    error_record(&f->err, STATUS_BAD_INPUT,
                 "this model's maximum context length is %u tokens, %s has %s%zu; %u more %s "
                 "needed for an answer",
                 c->n_context, prompt_field(j), at_least, n_tokens, n_more,
                 n_more == 1 ? "is" : "are");
    return fault_set(f, 400, "context_length_exceeded", STATUS_BAD_INPUT);
}

/* --- the prompt --- */

static bool gives_tokens(wire_kind kind) {
    return kind == WIRE_CHAT || kind == WIRE_COMPLETION;
}

/* Encoding a text that cannot fit would keep everyone waiting for nothing. */
static status check_bytes(const request_context *c, const job *j, size_t n_bytes,
                          request_fault *f) {
    size_t least = n_bytes / c->max_token_bytes;
    if (j->kind == WIRE_TOKENIZE || least < c->n_context) return STATUS_OK;
    return too_long(c, j, "at least ", least, 1, f);
}

static status encode_messages(request *r, const wire_submit *submit, token_list *ids,
                              bool *opens_thinking, request_fault *f) {
    const request_context *c = r->context;
    const job *j = &r->job;
    prompt p = {0};
    status rc = chat_template_render(j->body, c->style, &p, &f->err);
    if (rc != STATUS_OK) {
        if (rc == STATUS_BAD_INPUT) (void)snprintf(f->param, sizeof f->param, "messages");
        goto done;
    }
    rc = check_bytes(c, j, p.text.length, f);
    if (rc != STATUS_OK) goto done;
    *opens_thinking = p.opens_thinking;
    /* What clients wrote is text: it cannot spell control tokens. */
    rc = tokenizer_encode_prompt(c->vocab, &p, TOKENIZER_ADDED_NONE, ids, &f->err);
    if (rc == STATUS_OK && gives_tokens(j->kind))
        rc = prefix_marks_of_chat(&r->marks, &p, ids->length, &c->prefix, submit->boundaries,
                                  submit->n_boundaries, &f->err);
done:
    prompt_release(&p);
    return rc;
}

static status encode_prompt(const request_context *c, const job *j, token_list *ids,
                            request_fault *f) {
    if (cJSON_IsString(j->prompt)) {
        size_t length = strlen(j->prompt->valuestring);
        status rc = check_bytes(c, j, length, f);
        if (rc != STATUS_OK) return rc;
        return tokenizer_encode(c->vocab, j->prompt->valuestring, length,
                                j->as_text ? TOKENIZER_ADDED_NONE : TOKENIZER_ADDED_ALL, ids,
                                &f->err);
    }
    for (const cJSON *item = j->prompt->child; item != NULL; item = item->next) {
        status rc = token_list_add(ids, (int32_t)item->valuedouble, &f->err);
        if (rc != STATUS_OK) return rc;
    }
    return STATUS_OK;
}

static status encode(request *r, const wire_submit *submit, token_list *ids,
                     bool *opens_thinking, request_fault *f) {
    *opens_thinking = false;
    if (r->job.prompt == NULL) return encode_messages(r, submit, ids, opens_thinking, f);
    status rc = encode_prompt(r->context, &r->job, ids, f);
    if (rc == STATUS_OK && gives_tokens(r->job.kind))
        prefix_marks_of_text(&r->marks, ids->length, &r->context->prefix);
    return rc;
}

/* --- kinds that give no tokens --- */

static status make_result(request *r, const token_list *ids, request_fault *f) {
    r->result = result_write(&r->job, r->context->vocab, r->context->n_context, ids);
    if (r->result != NULL) return STATUS_OK;
    return error_set(&f->err, STATUS_NO_MEMORY, "request: no memory for its result");
}

/* --- choices --- */

/* Where the model deliberates there must be room to close that and to answer. */
static status check_length(const request *r, size_t n_prompt, bool opens_thinking,
                           request_fault *f) {
    uint32_t n_more = opens_thinking ? BUDGET_N_CLOSING + 1 : 1;
    const request_context *c = r->context;
    if (n_prompt == 0) {
        (void)snprintf(f->param, sizeof f->param, "%s", prompt_field(&r->job));
        return error_set(&f->err, STATUS_BAD_INPUT, "%s has no tokens", prompt_field(&r->job));
    }
    if (n_prompt + n_more <= c->n_context) return STATUS_OK;
    return too_long(c, &r->job, "", n_prompt, n_more, f);
}

/* What is no chat, or must have a form, ends where its limit says. */
static budget_params limits_of(const request *r) {
    const request_context *c = r->context;
    const job *j = &r->job;
    budget_params p = {.max_total = j->max_tokens, .max_answer = j->max_answer_tokens};
    memcpy(p.closing, c->closing, sizeof p.closing);
    if (j->prompt != NULL) return p;
    p.max_reasoning = budget_max_reasoning(&c->budgets, j->max_thinking_tokens, j->max_tokens,
                                           c->n_context - r->n_prompt);
    if (!j->ignore_end) p.settings = c->budgets;
    if (!j->is_prose) {
        p.settings.loop_answer = p.settings.loop_code = 0;
        p.settings.grace_tokens = 0;
    }
    return p;
}

static uint32_t limit_of(const request *r, const budget_params *p) {
    uint64_t room = r->context->n_context - r->n_prompt;
    uint64_t wish = (uint64_t)p->max_total + p->settings.grace_tokens;
    return p->max_total != 0 && wish < room ? r->n_prompt + (uint32_t)wish
                                            : r->context->n_context;
}

static status make_choice(request *r, uint32_t index, const token_list *ids,
                          bool opens_thinking, uint64_t seed, request_fault *f) {
    error *err = &f->err;
    choice *c = &r->choices[index];
    budget_params limits = limits_of(r);
    uint32_t cap = limit_of(r, &limits);
    sampler_params params = r->job.sampling;
    params.seed = (r->job.has_seed ? params.seed : seed) + index;
    status rc = sequence_init(&c->timeline, ids->ids, r->n_prompt, cap, err);
    if (rc != STATUS_OK) return rc;
    c->timeline.owner = r;
    c->timeline.choice = index;
    c->ending = -1;
    rc = sampler_new(&c->draws, &params, cap < r->context->n_vocab ? cap : r->context->n_vocab,
                     err);
    if (rc != STATUS_OK) return rc;
    sampler_see_prompt(c->draws, ids->ids, r->n_prompt);
    rc = generation_init(&c->text, r->context->vocab, r->job.prompt == NULL, opens_thinking,
                         r->job.stops, r->job.n_stops, err);
    if (rc != STATUS_OK) return rc;
    if (r->job.tools != NULL) generation_divide(&c->text, r->job.tools, r->job.single_call);
    c->text.repairs = r->job.prompt == NULL && r->job.is_prose;
    rc = request_format_make(r, c, &limits, opens_thinking, f);
    if (rc != STATUS_OK) return rc;
    budget_init(&c->spent, &limits, generation_is_inside(&c->text));
    c->open = true;
    r->n_open++;
    return STATUS_OK;
}

static bool is_full(const sequence *s) {
    return s->n_tokens == s->cap_tokens;
}

/* Show a token to all that follow the choice.  Its finish, if it is over with it; else it is
 * on the timeline. */
static wire_finish put(request *r, choice *c, int32_t id) {
    bool was_spent = c->spent.in_grace;
    sampler_see_output(c->draws, id);
    request_opening_take(c, id);
    request_format_take(c, id);
    generation_push(&c->text, id);
    wire_finish finish = budget_take(&c->spent, &c->text, id);
    if (c->text.stopped || tokenizer_is_end(r->context->vocab, id)) {
        c->ending = id;
        /* Done by itself with its calls whole: a client can make them. */
        bool called = c->text.calls.n_calls > 0 && !c->text.calls.open;
        return was_spent && !called ? WIRE_FINISH_LENGTH : WIRE_FINISH_STOP;
    }
    bool appended = sequence_append(&c->timeline, id);
    CHECK(appended);
    return is_full(&c->timeline) ? WIRE_FINISH_LENGTH : finish;
}

/* Go on where another node stopped: its tokens are on the timeline, and the text they
 * gave has been seen. */
static status replay(request *r, const wire_resume *resume, request_fault *f) {
    choice *c = &r->choices[0];
    if (resume->n_ids == 0) return STATUS_OK;
    if (r->n_choices != 1) {
        return error_set(&f->err, STATUS_BAD_INPUT, "n = %u: only one choice can be resumed",
                         r->n_choices);
    }
    for (size_t i = 0; i < resume->n_ids; i++) {
        int32_t id = resume->ids[i];
        if (id < 0 || (uint32_t)id >= r->context->n_vocab) {
            return error_set(&f->err, STATUS_BAD_INPUT, "resume: id %d at %zu is not a token",
                             id, i);
        }
        c->over = put(r, c, id);
        if (c->over == WIRE_FINISH_NONE) continue;
        if (is_full(&c->timeline) && i + 1 < resume->n_ids) {
            return error_set(&f->err, STATUS_BAD_INPUT,
                             "resume: %zu ids do not fit behind a prompt of %u", resume->n_ids,
                             r->n_prompt);
        }
        break;
    }
    json_text_clear(&c->text.reasoning); /* the other node has sent it */
    json_text_clear(&c->text.content);
    tool_call_clear(&c->text.calls);
    sampler_set_counter(c->draws, resume->sampler_counter);
    return STATUS_OK;
}

static status make_choices(request *r, const token_list *ids, bool opens_thinking,
                           uint64_t seed, const wire_submit *submit, request_fault *f) {
    status rc = check_length(r, ids->length, opens_thinking, f);
    if (rc != STATUS_OK) return rc;
    rc = request_format_compile(r, f);
    if (rc != STATUS_OK) return rc;
    r->n_prompt = (uint32_t)ids->length;
    r->choices = calloc(r->job.n_choices, sizeof *r->choices);
    if (r->choices == NULL) {
        return error_set(&f->err, STATUS_NO_MEMORY, "request: no memory for %u choices",
                         r->job.n_choices);
    }
    r->n_choices = r->job.n_choices;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        rc = make_choice(r, i, ids, opens_thinking, seed, f);
        if (rc != STATUS_OK) return rc;
        r->choices[i].timeline.priority = r->priority;
    }
    for (uint32_t i = 0; i < r->marks.n_stops; i++) /* the others take over what this one ran */
        (void)sequence_add_stop(&r->choices[0].timeline, r->marks.stops[i]);
    return replay(r, &submit->resume, f);
}

/* --- life --- */

status request_make(request **out, const request_context *context, const wire_submit *submit,
                    uint64_t seed, request_fault *fault) {
    token_list ids = {0};
    bool opens_thinking = false;
    *out = NULL;
    memset(fault, 0, sizeof *fault);
    status rc = STATUS_OK;
    request *r = calloc(1, sizeof *r);
    if (r == NULL) {
        rc = error_set(&fault->err, STATUS_NO_MEMORY, "request: no memory");
        goto fail;
    }
    r->context = context;
    r->id = submit->request;
    r->epoch = submit->epoch;
    r->submitted_ns = clock_monotonic_ns();
    if (submit->deadline_ms > 0) {
        r->deadline_ns = r->submitted_ns + submit->deadline_ms * 1000000u;
    }
    r->priority = submit->priority != 0 ? SEQUENCE_BACKGROUND : SEQUENCE_INTERACTIVE;
    if (submit->kind == WIRE_EMBED || submit->kind == WIRE_RERANK) {
        rc = embedding_make(r, submit, fault);
        if (rc != STATUS_OK) goto fail;
        *out = r;
        return STATUS_OK;
    }
    rc = job_parse(&r->job, submit->kind, submit->body.bytes, submit->body.length,
                   context->n_vocab, &context->defaults, fault->param, &fault->err);
    if (rc != STATUS_OK) goto fail;
    rc = encode(r, submit, &ids, &opens_thinking, fault);
    r->opens_thinking = opens_thinking;
    if (rc == STATUS_OK) rc = request_opening_make(r, fault);
    if (rc != STATUS_OK) goto fail;
    if (gives_tokens(submit->kind)) {
        rc = make_choices(r, &ids, opens_thinking, seed, submit, fault);
    } else {
        rc = make_result(r, &ids, fault);
        r->n_prompt = (uint32_t)ids.length;
    }
    if (rc != STATUS_OK) goto fail;
    token_list_release(&ids);
    *out = r;
    return STATUS_OK;
fail:
    token_list_release(&ids);
    request_free(r);
    return request_fault_from(fault, rc);
}

void request_free(request *r) {
    if (r == NULL) return;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        answer_format_free(r->choices[i].format);
        answer_format_free(r->choices[i].call_format);
        generation_release(&r->choices[i].text);
        sampler_free(r->choices[i].draws);
        sequence_release(&r->choices[i].timeline);
    }
    json_grammar_free(r->grammar);
    json_grammar_free(r->call_grammar);
    embedding_free(r->vectors);
    free(r->choices);
    prefix_marks_release(&r->marks);
    free(r->held);
    free(r->result);
    json_text_release(&r->logprobs);
    token_list_release(&r->opening);
    job_release(&r->job);
    free(r);
}

/* --- tokens --- */

/* A message of a choice, but for its text. */
static wire_tokens begin_message(request *r, const choice *c, wire_channel channel) {
    return (wire_tokens){.request = r->id,
                         .epoch = r->epoch,
                         .choice = c->timeline.choice,
                         .channel = channel,
                         .call = c->text.calls.n_calls,
                         .flags = budget_flags(&c->spent),
                         .draws = sampler_counter(c->draws),
                         .prompt_tokens = r->n_prompt,
                         .cached_tokens = r->n_cached};
}

/* What a token gives goes out as one message for each channel and piece of a call.  One of
 * them has the token's id: the first of its channel, or the last. */
typedef struct outbox {
    request *r;
    choice *c;
    const int32_t *id; /* NULL once it has been sent */
    wire_tokens waiting;
    bool has_waiting;
} outbox;

static void send_waiting(outbox *o, bool is_last) {
    wire_tokens *m = &o->waiting;
    request *r = o->r;
    if (o->id != NULL && (is_last || m->channel == o->c->text.channel)) {
        m->ids = o->id;
        m->n_ids = 1;
        m->logprobs = wire_text(r->logprobs.bytes, r->logprobs.length);
        o->id = NULL;
    }
    if (!is_last) m->flags |= WIRE_FLAG_MORE;
    m->number = r->number++;
    r->context->sink.on_tokens(r->context->sink.context, m);
}

static wire_tokens *add_message(outbox *o, wire_channel channel, const char *text,
                                size_t length) {
    if (o->has_waiting) send_waiting(o, false);
    o->has_waiting = true;
    o->waiting = begin_message(o->r, o->c, channel);
    o->waiting.text = wire_text(text, length);
    return &o->waiting;
}

static void add_calls(outbox *o) {
    const tool_call *calls = &o->c->text.calls;
    for (size_t i = 0; i < calls->n_pieces; i++) {
        const tool_piece *p = &calls->pieces[i];
        const char *text = calls->out.bytes + p->at;
        if (p->kind == TOOL_TEXT) continue;
        wire_tokens *m = add_message(o, WIRE_TOOL_CALL, NULL, 0);
        *(p->kind == TOOL_BEGIN ? &m->call_name : &m->text) = wire_text(text, p->length);
        m->call = p->call;
    }
}

static void report(request *r, choice *c, const int32_t *id, wire_finish finish) {
    const generation *g = &c->text;
    outbox o = {.r = r, .c = c, .id = id};
    if (g->reasoning.length > 0)
        add_message(&o, WIRE_REASONING, g->reasoning.bytes, g->reasoning.length);
    if (g->content.length > 0)
        add_message(&o, WIRE_CONTENT, g->content.bytes, g->content.length);
    add_calls(&o);
    bool cut = finish != WIRE_FINISH_NONE && g->calls.cut;
    if (!o.has_waiting || cut) add_message(&o, g->channel, NULL, 0);
    o.waiting.finish = finish;
    if (finish != WIRE_FINISH_NONE && g->stopped)
        o.waiting.flags |= (uint64_t)(uint32_t)(g->stop_number + 1) << WIRE_FLAG_STOP_SHIFT;
    if (cut) o.waiting.flags |= WIRE_FLAG_CALL_CUT;
    send_waiting(&o, true);
    json_text_clear(&r->logprobs);
}

static void close_choice(request *r, choice *c, const int32_t *id) {
    generation_finish(&c->text, c->over == WIRE_FINISH_LENGTH);
    if (c->over == WIRE_FINISH_STOP && c->text.calls.n_calls > 0)
        c->over = WIRE_FINISH_TOOL_CALLS;
    c->open = false;
    r->n_open--;
    report(r, c, id, c->over);
}

bool request_take(request *r, choice *c, int32_t id) {
    if (r->first_token_ns == 0) r->first_token_ns = clock_monotonic_ns();
    c->over = put(r, c, id);
    if (c->over != WIRE_FINISH_NONE) {
        close_choice(r, c, &id);
        return false;
    }
    report(r, c, &id, WIRE_FINISH_NONE);
    return true;
}

bool request_finish_if_over(request *r, choice *c) {
    if (c->over == WIRE_FINISH_NONE) return false;
    close_choice(r, c, NULL);
    return true;
}

int32_t request_forced(const choice *c) {
    int32_t id = budget_forced(&c->spent);
    return id >= 0 ? id : request_opening_next(c);
}

int32_t request_settle(const request *r, choice *c, int32_t id) {
    if (!tokenizer_is_end(r->context->vocab, id) && !request_format_spills(c, id)) return id;
    return budget_settle_end(&c->spent, &c->text, id);
}

bool request_must_speak(const choice *c) {
    return c->spent.must_speak && !generation_is_inside(&c->text);
}

/* --- log probabilities, as the items of OpenAI's `content` list --- */

static void add_token(json_text *out, const tokenizer *vocab, int32_t id, float logprob) {
    size_t length = 0;
    const char *bytes = tokenizer_bytes(vocab, id, &length);
    json_text_format(out, "{\"token\":");
    json_text_string(out, bytes, length);
    /* JSON has no infinity; OpenAI's smallest is -9999. */
    json_text_format(out, ",\"logprob\":%.6g,\"bytes\":[",
                     isfinite(logprob) ? (double)logprob : -9999.0);
    for (size_t i = 0; i < length; i++)
        json_text_format(out, "%s%u", i > 0 ? "," : "", (unsigned)(unsigned char)bytes[i]);
    json_text_format(out, "]");
}

void request_note_logprobs(request *r, sampler_scratch *scratch, const float *raw, int32_t id) {
    sampler_logprob top[SAMPLER_MAX_TOP];
    float logprob = 0;
    size_t n_top = r->job.n_top_logprobs;
    sampler_logprobs(scratch, raw, r->context->n_vocab, id, &logprob, top, n_top);
    json_text_clear(&r->logprobs);
    json_text_format(&r->logprobs, "[");
    add_token(&r->logprobs, r->context->vocab, id, logprob);
    json_text_format(&r->logprobs, ",\"top_logprobs\":[");
    for (size_t i = 0; i < n_top; i++) {
        if (i > 0) json_text_format(&r->logprobs, ",");
        add_token(&r->logprobs, r->context->vocab, top[i].id, top[i].logprob);
        json_text_format(&r->logprobs, "}");
    }
    json_text_format(&r->logprobs, "]}]");
}

/* --- the end --- */

static double ms_between(uint64_t from_ns, uint64_t to_ns) {
    return from_ns == 0 || to_ns < from_ns ? 0 : (double)(to_ns - from_ns) / 1e6;
}

void request_done(request *r, bool has_cache) {
    uint64_t now = clock_monotonic_ns();
    wire_done done = {.request = r->id,
                      .epoch = r->epoch,
                      .number = r->number,
                      .prompt_tokens = r->n_prompt,
                      .cached_tokens = r->n_cached,
                      .boundaries = r->held,
                      .n_boundaries = r->n_held,
                      .lost = r->lost,
                      .n_lost = r->n_lost,
                      .hit_rate = -1};
    for (uint32_t i = 0; i < r->n_choices; i++) {
        done.completion_tokens += r->choices[i].text.n_tokens;
        done.reasoning_tokens += r->choices[i].text.n_reasoning;
    }
    uint64_t started = r->started_ns != 0 ? r->started_ns : now;
    done.queue_ms = ms_between(r->submitted_ns, started);
    done.prefill_ms = ms_between(r->started_ns, r->first_token_ns);
    done.decode_ms = ms_between(r->first_token_ns, now);
    if (has_cache && r->expert_lookups > 0) {
        done.hit_rate = (double)r->expert_hits / (double)r->expert_lookups;
        done.misses_per_token = r->expert_misses / (double)r->rows;
    }
    if (r->result != NULL) done.result = wire_text(r->result, strlen(r->result));
    r->over = r->ended_well = true;
    r->context->sink.on_done(r->context->sink.context, &done);
}

static void send_error(const request_context *c, uint64_t id, uint64_t epoch,
                       const request_fault *f) {
    wire_error message = {.request = id,
                          .epoch = epoch,
                          .http_status = f->http_status,
                          .code = wire_text(f->code, strlen(f->code)),
                          .param = wire_text(f->param, strlen(f->param)),
                          .text = wire_text(f->err.text, strlen(f->err.text)),
                          .retryable = f->retryable};
    c->sink.on_error(c->sink.context, &message);
}

void request_fail(request *r, const request_fault *fault) {
    r->over = true;
    if (r->ahead) return;
    send_error(r->context, r->id, r->epoch, fault);
}

void request_refuse(const request_context *context, const wire_submit *submit,
                    const request_fault *fault) {
    send_error(context, submit->request, submit->epoch, fault);
}
