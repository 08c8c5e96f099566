#include "worker/text/markdown.h"

#include "worker/text/markdown_html.h"
#include <string.h>

enum { TAB_STOP = 4, CODE_INDENT = 4, LEAST_FENCE = 3, MOST_DIGITS = 9 };

/* A place in the line: bytes and columns, a tab possibly taken in part. */
typedef struct cursor {
    const char *line;
    uint32_t length;
    uint32_t at;
    uint32_t column;
    uint32_t tab_left; /* columns of the tab at `at` that are not taken */
} cursor;

static bool is_blank_byte(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* Columns of white space from here, and where the text after it is. */
static uint32_t indent_of(const cursor *c, cursor *text) {
    *text = *c;
    while (text->at < text->length && is_blank_byte(text->line[text->at])) {
        uint32_t width = 1;
        if (text->line[text->at] == '\t')
            width = text->tab_left > 0 ? text->tab_left : TAB_STOP - text->column % TAB_STOP;
        text->column += width;
        text->tab_left = 0;
        text->at++;
    }
    return text->column - c->column;
}

/* Take n columns of white space, or what there is. */
static void skip_columns(cursor *c, uint32_t n) {
    while (n > 0 && c->at < c->length && is_blank_byte(c->line[c->at])) {
        if (c->line[c->at] != '\t') {
            c->column++;
            c->at++;
            n--;
            continue;
        }
        uint32_t width = c->tab_left > 0 ? c->tab_left : TAB_STOP - c->column % TAB_STOP;
        uint32_t taken = width < n ? width : n;
        c->column += taken;
        n -= taken;
        c->tab_left = width - taken;
        if (c->tab_left == 0) c->at++;
    }
}

static void skip_bytes(cursor *c, uint32_t n) {
    c->at += n;
    c->column += n;
}

static bool is_blank(const markdown *m, const cursor *text) {
    return text->at == text->length && !m->lost_text;
}

static uint32_t run_of(const cursor *c, char byte) {
    uint32_t n = 0;
    while (c->at + n < c->length && c->line[c->at + n] == byte)
        n++;
    return n;
}

void markdown_init(markdown *m) {
    memset(m, 0, sizeof *m);
}

/* --- containers --- */

static void close_to(markdown *m, uint32_t depth) {
    if (m->depth == depth) return;
    m->depth = depth;
    m->in_paragraph = false;
    m->new_blocks = true;
    m->item_is_empty = false; /* it had what was closed */
}

static void enter(markdown *m, markdown_container container) {
    m->in_paragraph = false;
    m->new_blocks = true;
    m->item_is_empty = false;
    if (m->depth < MARKDOWN_MAX_DEPTH) m->open[m->depth++] = container;
}

static bool goes_on(const markdown *m, uint32_t i, cursor *c) {
    cursor text;
    uint32_t indent = indent_of(c, &text);
    if (m->open[i].is_quote) {
        if (indent >= CODE_INDENT || text.at == text.length || text.line[text.at] != '>') {
            return false;
        }
        skip_bytes(&text, 1);
        skip_columns(&text, 1);
        *c = text;
        return true;
    }
    if (indent >= m->open[i].offset) {
        skip_columns(c, m->open[i].offset);
        return true;
    }
    if (!is_blank(m, &text) || (i + 1 == m->depth && m->item_is_empty)) return false;
    *c = text;
    return true;
}

/* How many containers this line continues; c is behind their markers. */
static uint32_t match_containers(const markdown *m, cursor *c) {
    uint32_t i = 0;
    while (i < m->depth && goes_on(m, i, c))
        i++;
    return i;
}

/* --- blocks --- */

/* A fence opens: its length, or 0. */
static uint32_t fence_of(const markdown *m, const cursor *text) {
    if (text->at == text->length) return 0;
    char byte = text->line[text->at];
    uint32_t n = byte == '`' || byte == '~' ? run_of(text, byte) : 0;
    if (n < LEAST_FENCE) return 0;
    const char *info = text->line + text->at + n;
    bool has_backtick =
        memchr(info, '`', text->length - text->at - n) != NULL || m->lost_backtick;
    return byte == '`' && has_backtick ? 0 : n;
}

static bool closes_fence(const markdown *m, const cursor *c) {
    cursor text;
    if (indent_of(c, &text) >= CODE_INDENT) return false;
    uint32_t n = run_of(&text, m->fence);
    if (n < m->fence_length) return false;
    skip_bytes(&text, n);
    cursor rest;
    (void)indent_of(&text, &rest);
    return is_blank(m, &rest);
}

static bool is_thematic_break(const markdown *m, const cursor *text) {
    char byte = text->line[text->at];
    uint32_t n = 0;
    if ((byte != '*' && byte != '-' && byte != '_') || m->lost_text) return false;
    for (uint32_t i = text->at; i < text->length; i++) {
        if (text->line[i] == byte)
            n++;
        else if (!is_blank_byte(text->line[i]))
            return false;
    }
    return n >= 3;
}

static bool is_setext_underline(const markdown *m, const cursor *text) {
    char byte = text->line[text->at];
    if (byte != '=' && byte != '-') return false;
    cursor rest = *text, end;
    skip_bytes(&rest, run_of(text, byte));
    (void)indent_of(&rest, &end);
    return is_blank(m, &end);
}

static bool is_heading(const cursor *text) {
    uint32_t n = run_of(text, '#');
    uint32_t after = text->at + n;
    return n >= 1 && n <= 6 && (after == text->length || is_blank_byte(text->line[after]));
}

/* A list marker: its width, or 0. */
static uint32_t marker_of(const cursor *text, bool interrupts) {
    uint32_t at = text->at, n = 0;
    if (text->line[at] == '-' || text->line[at] == '+' || text->line[at] == '*') {
        n = 1;
    } else {
        while (n < MOST_DIGITS && at + n < text->length && text->line[at + n] >= '0' &&
               text->line[at + n] <= '9')
            n++;
        if (n == 0 || at + n >= text->length) return 0;
        if (text->line[at + n] != '.' && text->line[at + n] != ')') return 0;
        if (interrupts && (n != 1 || text->line[at] != '1')) return 0;
        n++;
    }
    if (at + n < text->length && !is_blank_byte(text->line[at + n])) return 0;
    return n;
}

/* The content of a list item is as far in as its text, unless that is indented code. */
static bool open_item(markdown *m, cursor *c, uint32_t matched, bool interrupts) {
    cursor text, after;
    uint32_t indent = indent_of(c, &text);
    uint32_t width = marker_of(&text, interrupts);
    if (width == 0) return false;
    skip_bytes(&text, width);
    uint32_t spaces = indent_of(&text, &after);
    bool blank = is_blank(m, &after);
    if (blank && interrupts) return false;
    if (blank || spaces > CODE_INDENT) {
        skip_columns(&text, 1);
        spaces = 1;
    } else {
        text = after;
    }
    close_to(m, matched);
    enter(m, (markdown_container){false, indent + width + spaces});
    m->item_is_empty = blank;
    *c = text;
    return true;
}

static void open_fence(markdown *m, const cursor *text, uint32_t n) {
    m->fence = text->line[text->at];
    m->fence_length = n;
    m->fence_depth = m->depth;
    m->in_paragraph = false;
    m->item_is_empty = false;
}

static void open_html(markdown *m, const cursor *text, int kind) {
    bool ends = markdown_html_ends(kind, text->line + text->at, text->length - text->at);
    m->html = ends ? 0 : kind;
    m->html_depth = m->depth;
    m->in_paragraph = false;
    m->item_is_empty = false;
}

/* A block of one line: what was before has ended. */
static void leaf(markdown *m, uint32_t matched) {
    close_to(m, matched);
    m->in_paragraph = false;
    m->item_is_empty = false;
}

typedef enum opened { OPENED_NOTHING, OPENED_CONTAINER, OPENED_LEAF } opened;

/* What begins at c, in the order in which CommonMark looks; matched containers go on. */
static opened open_block(markdown *m, cursor *c, uint32_t matched) {
    cursor text;
    uint32_t indent = indent_of(c, &text);
    if (is_blank(m, &text) || text.at == text.length || indent >= CODE_INDENT) {
        return OPENED_NOTHING;
    }
    bool interrupts = m->in_paragraph && matched == m->depth;
    if (text.line[text.at] == '>') {
        close_to(m, matched);
        enter(m, (markdown_container){true, 0});
        skip_bytes(&text, 1);
        skip_columns(&text, 1);
        *c = text;
        return OPENED_CONTAINER;
    }
    if (is_heading(&text)) {
        leaf(m, matched);
        return OPENED_LEAF;
    }
    uint32_t fence = fence_of(m, &text);
    if (fence > 0) {
        close_to(m, matched);
        open_fence(m, &text, fence);
        return OPENED_LEAF;
    }
    int html = markdown_html_begins(text.line + text.at, text.length - text.at);
    if (html > 0 && (html < 7 || !m->in_paragraph)) {
        close_to(m, matched);
        open_html(m, &text, html);
        return OPENED_LEAF;
    }
    if ((interrupts && is_setext_underline(m, &text)) || is_thematic_break(m, &text)) {
        leaf(m, matched);
        return OPENED_LEAF;
    }
    return open_item(m, c, matched, interrupts) ? OPENED_CONTAINER : OPENED_NOTHING;
}

/* The line, or its rest, is ordinary text, indented code or blank. */
static void take_text(markdown *m, const cursor *c, uint32_t matched) {
    cursor text;
    uint32_t indent = indent_of(c, &text);
    bool blank = is_blank(m, &text);
    if (m->in_paragraph && !blank) return; /* it goes on, if lazily */
    close_to(m, matched);
    m->in_paragraph = !blank && indent < CODE_INDENT;
    if (!blank) m->item_is_empty = false;
}

/* --- lines --- */

/* A line inside a fence or an HTML block; false when that has ended with its container. */
static bool take_inside(markdown *m, const cursor *c, uint32_t matched) {
    if (m->fence_length > 0) {
        if (matched < m->fence_depth) {
            m->fence_length = 0;
            return false;
        }
        if (closes_fence(m, c)) m->fence_length = 0;
        return true;
    }
    if (m->html == 0) return false;
    cursor text;
    (void)indent_of(c, &text);
    bool over = matched < m->html_depth || (m->html >= 6 && is_blank(m, &text));
    if (over) {
        m->html = 0;
        return false;
    }
    if (markdown_html_ends(m->html, c->line + c->at, c->length - c->at)) m->html = 0;
    return true;
}

static void take_line(markdown *m) {
    cursor c = {.line = m->line, .length = m->n_line};
    uint32_t matched = match_containers(m, &c);
    m->new_blocks = !m->in_paragraph;
    opened last = OPENED_LEAF;
    if (!take_inside(m, &c, matched)) {
        for (last = OPENED_CONTAINER; last == OPENED_CONTAINER && m->depth < MARKDOWN_MAX_DEPTH;
             matched = last == OPENED_CONTAINER ? m->depth : matched)
            last = open_block(m, &c, matched);
        if (last != OPENED_LEAF) take_text(m, &c, matched);
    }
    /* Inline code ends with its paragraph. */
    if (m->new_blocks) m->span = m->fresh_span;
    if (!m->in_paragraph) m->span = 0;
    m->fresh_span = 0;
}

/* Inline code, byte by byte: a run of backticks opens a span, one as long closes it. */
static void end_span_run(uint32_t *span, uint32_t run) {
    if (*span == 0)
        *span = run;
    else if (*span == run)
        *span = 0;
}

static void end_run(markdown *m) {
    if (m->run == 0) return;
    end_span_run(&m->span, m->run);
    end_span_run(&m->fresh_span, m->run);
    m->run = 0;
}

static void take_inline(markdown *m, char byte) {
    if (byte == '`' && !(m->escaped && m->run == 0)) {
        m->run++;
        m->escaped = false;
        return;
    }
    end_run(m);
    m->escaped = byte == '\\' && !m->escaped && m->span == 0;
}

static void end_line(markdown *m) {
    end_run(m);
    take_line(m);
    m->escaped = false;
    m->n_line = m->n_lost = 0;
    m->lost_backtick = m->lost_text = false;
}

void markdown_push(markdown *m, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == '\n') {
            end_line(m);
            continue;
        }
        take_inline(m, bytes[i]);
        if (m->n_line < MARKDOWN_MAX_PREFIX) {
            m->line[m->n_line++] = bytes[i];
            continue;
        }
        m->n_lost++;
        m->lost_backtick |= bytes[i] == '`';
        m->lost_text |= !is_blank_byte(bytes[i]);
    }
}

bool markdown_in_fence(const markdown *m) {
    if (m->n_line == 0) return m->fence_length > 0;
    markdown after = *m; /* as if the line ended here */
    end_line(&after);
    return after.fence_length > 0;
}

static void close_fence(const markdown *m, bool in_line, json_text *out) {
    if (in_line) json_text_add(out, "\n", 1);
    for (uint32_t i = 0; i < m->fence_depth; i++) {
        if (m->open[i].is_quote) json_text_add(out, "> ", 2);
        for (uint32_t k = 0; !m->open[i].is_quote && k < m->open[i].offset; k++)
            json_text_add(out, " ", 1);
    }
    for (uint32_t i = 0; i < m->fence_length; i++)
        json_text_add(out, &m->fence, 1);
}

/* Backticks for the open span, unless they would be read as something else there. */
static void close_span(const markdown *line, uint32_t n, json_text *out) {
    markdown closed = *line;
    for (uint32_t i = 0; i < n; i++)
        markdown_push(&closed, "`", 1);
    if (line->run > 0 || markdown_in_fence(&closed)) return;
    for (uint32_t i = 0; i < n; i++)
        json_text_add(out, "`", 1);
}

void markdown_finish(markdown *m, bool cut, json_text *out) {
    bool in_line = m->n_line > 0;
    markdown line = *m;
    if (in_line) end_line(m);
    if (m->fence_length > 0) {
        close_fence(m, in_line, out);
    } else if (cut && in_line && m->span > 0) {
        close_span(&line, m->span, out);
    }
    markdown_init(m);
}
