#!/usr/bin/env python3
"""gpu_prefix.py PROGRAMS MODEL BACKEND [FLAGS...] - a chat of eight turns behind a long system prompt.

What prefix.mjs measures, where there is no node: a coordinator and one worker on free ports, a chat of
which the beginnings are held and the same one made another's by its first word.  Prints JSON: time to the
first token of each turn, ms, and the share of the prompt that was held.
"""
import json
import re
import subprocess
import sys
import time
import urllib.request

TURNS = 8
PROGRAMS, MODEL, BACKEND, FLAGS = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]


def start(words, ready):
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        match = re.match(ready, line)
        if match:
            return process, match
    raise SystemExit(f"{words[0]} ended before it was ready")


def ask(url, model, messages):
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 16, "stream": True,
            "stream_options": {"include_usage": True}, "chat_template_kwargs": {"enable_thinking": False}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    begun, first, text, usage = time.monotonic(), None, "", {}
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            delta = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if delta:
                first = first or time.monotonic()
                text += delta
    return ((first or time.monotonic()) - begun) * 1e3, text, usage


def chat(url, model, name, cold):
    system = f"{name} is the guide. " + "The house has rooms, stairs and a garden with trees. " * 180
    messages, times, shares = [{"role": "system", "content": system}], [], []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn + 1}: what is in room {turn + 3}?"})
        asked = messages
        if cold:  # another's by its first word: nothing of it is held
            asked = [{"role": "system", "content": f"{turn} {system}"}] + messages[1:]
        ms, text, usage = ask(url, model, asked)
        times.append(round(ms, 3))
        held = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        shares.append(round(held / max(usage.get("prompt_tokens", 1), 1), 4))
        messages.append({"role": "assistant", "content": text})
    return times, shares


def main():
    coordinator, ready = start([f"{PROGRAMS}/siliceo-coordinator", "serve", "--http", "127.0.0.1:0",
                                "--mesh", "tcp://127.0.0.1:0", "--log-level", "warn"],
                               r"ready http=(\S+) mesh=(\S+)")
    url, mesh = "http://" + ready[1], ready[2]
    worker = None
    try:
        worker, _ = start([f"{PROGRAMS}/siliceo-worker", "serve", "--coordinator", mesh, "--model", MODEL,
                           "--name", "amber", "--sequences", "2", "--log-level", "warn", *FLAGS, "--backend", BACKEND],
                          r"ready ")
        for _ in range(600):
            with urllib.request.urlopen(url + "/v1/models") as reply:
                models = json.load(reply)["data"]
            if models:
                break
            time.sleep(0.1)
        model = models[0]["id"]
        ask(url, model, [{"role": "user", "content": "Hello."}])
        warm, shares = chat(url, model, "Amber", False)
        second, second_shares = chat(url, model, "Amber", False)
        cold, _ = chat(url, model, "Basalt", True)
        print(json.dumps({"warm_ttft_ms": warm, "cold_ttft_ms": cold, "held_share": shares,
                          "second_user_ttft_ms": second, "second_user_held_share": second_shares,
                          "turn8_speedup": round(cold[-1] / warm[-1], 3)}))
    finally:
        for process in (worker, coordinator):
            if process is not None:
                process.terminate()
                process.wait(timeout=30)


main()
