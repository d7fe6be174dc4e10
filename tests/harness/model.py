"""A scripted model on loopback. It speaks Anthropic Messages, OpenAI Responses, OpenAI Chat Completions and Gemini.

Each agent has a folder of its own in the URL, so one server serves all. The script is short:
- a prompt with `SEND NAME TEXT` leads to a shell call that sends TEXT to NAME,
- a line of the bell leads to a shell call that opens the mail that it names,
- a shell call that showed a QUESTION leads to one that answers it,
- a prompt with `SPAWN TASK` leads to a sub-agent with that task, and its start to a wait for its end if there is a tool for that,
- everything else leads to the text `done`.
"""

import json
import re
import shlex
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BELL = re.compile(r"msgfs: (\d+) unread messages? for ([\w.-]+)(?:, \d+ new)?(?:, from [^:]+)?: ([^\n<\"]+)")
SEND = re.compile(r"\bSEND (\S+) (\S+)")
SPAWN = re.compile(r"\bSPAWN (\S+)")
SPAWNED = re.compile(r'"agent_id": ?"([^"]+)"')
# Gemini CLI puts a word before the first line of an output.
SHOWN = re.compile(r"^(?:Output: )?== (\S+)$|^QUESTION (\S+)$", re.M)
SENT = re.compile(r"^(?:Output: )?AT (\S+) (.+)$", re.M)


class Turn:
    """The part of a conversation that the model has not answered yet, and its tools."""

    def __init__(self, tools):
        self.tools = tools
        self.texts = []
        self.results = []

    def answered(self):
        """Forgets what came before an answer of the model."""
        self.texts, self.results = [], []


class Request:
    """One request as it is noted: its time, and what was new in it."""

    def __init__(self, agent, turn):
        self.time = time.monotonic()
        self.agent = agent
        self.has_tools = shell_tool(turn.tools) is not None
        self.text = "\n".join(turn.texts)
        self.results = list(turn.results)

    def shows(self, text):
        """Returns how often a shell call showed a line."""
        return sum(line.strip() == text for result in self.results for line in result.splitlines())

    def sent(self):
        """Returns the texts that a shell call has sent, with the time after it."""
        found = {}
        for result in self.results:
            for when, text in SENT.findall(result):
                found[text] = float(when) - time.time() + time.monotonic()
        return found

    def bells(self):
        return [bell.group(0).strip() for bell in BELL.finditer(self.text)]


class Agent:
    """What the model knows of one agent: the shell commands that it asked for."""

    def __init__(self):
        self.requests = []
        #: True as long as a shell call runs that the model has asked for.
        self.owes = False
        #: What its shell calls say beside the command.
        self.extra = {}
        self.hold = None
        self.held_since = 0.0


def shell_tool(tools):
    """Returns the name and the schema of the tool that runs shell commands."""
    for want in ("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command"):
        for name, schema in tools:
            if name == want:
                return name, schema
    return None


def shell_arguments(schema, command):
    """Returns the arguments of a shell call, whatever its schema asks for."""
    properties = schema.get("properties", {})
    arguments = {}
    for name in schema.get("required", []):
        if properties.get(name, {}).get("type") == "string":
            arguments[name] = "a step of a test"
    for name in ("command", "cmd"):
        if name in properties:
            is_list = properties[name].get("type") == "array"
            arguments[name] = ["sh", "-c", command] if is_list else command
            return arguments
    raise ValueError(f"no command in {schema}")


def agent_call(turn):
    """Returns the call that starts a sub-agent or waits for one, or None."""
    # Codex puts these tools into a namespace.
    tools = {name.rpartition(".")[2]: name for name, _ in turn.tools}
    for task in SPAWN.findall("\n".join(turn.texts)):
        if "Agent" in tools:
            return tools["Agent"], {"description": "a step of a test", "prompt": task, "subagent_type": "general-purpose"}
        if "spawn_agent" in tools:
            return tools["spawn_agent"], {"message": task}
    started = [agent for result in turn.results for agent in SPAWNED.findall(result)]
    if started and "wait_agent" in tools:
        return tools["wait_agent"], {"targets": started}
    return None


def next_command(turn):
    """Returns the shell command that comes next, or None."""
    commands = []
    text = "\n".join(turn.texts)
    for to, what in SEND.findall(text):
        commands.append(writing(f"msgfs send --new {shlex.quote(to)}", f"QUESTION {what}"))
    places = {}
    for _, me, place in BELL.findall(text):
        places[me] = place.strip()
    for me, place in places.items():
        commands.append(open_command(me, place))
    for result in turn.results:
        name = None
        for shown, question in SHOWN.findall(result):
            if shown:
                name = shown
            elif name:
                commands.append(writing(f"msgfs --me $MODEL_ME reply {name}", f"ANSWER {question}"))
    return " ; ".join(commands) or None


def writing(command, text):
    """Returns a command that sends a text, and then prints the time."""
    return f"{command} {shlex.quote(text)} && date {shlex.quote(f'+AT %s.%N {text}')}"


def open_command(me, place):
    """Returns the command that opens the mail of a bell, each message after a line with its name."""
    if place.startswith("/"):
        return f"for f in {shlex.quote(place)}; do echo \"== ${{f##*/}}\"; cat \"$f\"; done"
    if " cat inbox/" in place:
        name = place.split("inbox/")[1]
        return f"echo '== {name}' ; {place}"
    return f"{place} | while read f; do echo \"== $f\"; msgfs --me {me} cat \"inbox/$f\"; done"


# --- the four protocols: reading -------------------------------------------------------------------


def text_of(content):
    """Returns the text of a content, which is a text, a part, or a list of them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text") or content.get("content") or content.get("output") or "")
    return "\n".join(text_of(part) for part in content)


def read_anthropic(body):
    turn = Turn([(tool["name"], tool.get("input_schema", {})) for tool in body.get("tools", []) if "name" in tool])
    for message in body["messages"]:
        if message["role"] == "assistant":
            turn.answered()
            continue
        content = message["content"]
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, dict) and part.get("type") == "tool_result":
                turn.results.append(text_of(part.get("content")))
            else:
                turn.texts.append(text_of(part))
    return turn


def read_responses(body):
    named = [tool for tool in body.get("tools", []) if "name" in tool]
    spaces = [(f"{space['name']}.{tool['name']}", tool) for space in named for tool in space.get("tools", [])]
    tools = spaces + [(tool["name"], tool) for tool in named if "tools" not in tool]
    turn = Turn([(name, tool.get("parameters", {})) for name, tool in tools])
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] != "assistant":
            turn.texts.append(text_of(item["content"]))
        elif kind.endswith("_output"):
            turn.results.append(text_of(item.get("output")))
        elif kind in ("message", "function_call", "reasoning"):
            turn.answered()
    return turn


def read_chat(body):
    tools = [tool["function"] for tool in body.get("tools", []) if "function" in tool]
    turn = Turn([(tool["name"], tool.get("parameters", {})) for tool in tools])
    for message in body["messages"]:
        if message["role"] == "assistant":
            turn.answered()
        elif message["role"] == "tool":
            turn.results.append(text_of(message["content"]))
        else:
            turn.texts.append(text_of(message["content"]))
    return turn


def read_gemini(body):
    declared = [one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]
    turn = Turn([(one["name"], one.get("parametersJsonSchema") or one.get("parameters") or {}) for one in declared])
    for content in body["contents"]:
        if content.get("role") == "model":
            turn.answered()
            continue
        for part in content["parts"]:
            if "functionResponse" in part:
                turn.results.append(text_of(part["functionResponse"]["response"]))
            else:
                turn.texts.append(part.get("text", ""))
    return turn


# --- the four protocols: answering -----------------------------------------------------------------


def write_anthropic(call, text, number):
    if call:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": call[0], "input": call[1]}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        start = {**block, "input": {}}
    else:
        block = {"type": "text", "text": text}
        delta = {"type": "text_delta", "text": text}
        start = {"type": "text", "text": ""}
    reason = "tool_use" if call else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 10}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted", "usage": usage}
    whole = {**message, "content": [block], "stop_reason": reason, "stop_sequence": None}
    events = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return whole, events


def write_responses(call, text, number):
    if call:
        space, _, name = call[0].rpartition(".")
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
        item |= {"arguments": json.dumps(call[1]), "status": "completed"} | ({"namespace": space} if space else {})
    else:
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [part], "status": "completed"}
    usage = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    begun = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "model": "scripted", "output": []}
    whole = {**begun, "status": "completed", "output": [item], "usage": usage}
    events = [{"type": "response.created", "response": begun}]
    events.append({"type": "response.output_item.added", "output_index": 0, "item": item})
    if not call:
        told = {"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0, "content_index": 0}
        events.append({**told, "delta": text})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    events.append({"type": "response.completed", "response": whole})
    for order, event in enumerate(events):
        event["sequence_number"] = order
    return whole, events


def write_chat(call, text, number):
    message = {"role": "assistant", "content": None if call else text}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]
    reason = "tool_calls" if call else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    head = {"id": f"chat_{number}", "created": int(time.time()), "model": "scripted"}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    chunk = {**head, "object": "chat.completion.chunk"}
    events = [
        {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    ]
    return whole, events


def write_gemini(call, text, _number):
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": text}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
    return whole, [whole]


PROTOCOLS = [
    ("/v1/messages", read_anthropic, write_anthropic),
    ("/responses", read_responses, write_responses),
    ("/chat/completions", read_chat, write_chat),
    (":generateContent", read_gemini, write_gemini),
    (":streamGenerateContent", read_gemini, write_gemini),
]


class Model:
    """The server, with what it was asked."""

    def __init__(self, log):
        self.agents = {}
        self.log = open(log, "a", encoding="utf-8")
        self.lock = threading.Lock()
        self.number = 0
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = self.path.split("?")[0]
                model.note(self.command, path)
                models = [{"id": "scripted", "object": "model", "type": "model", "display_name": "scripted"}]
                found = path.endswith("/models")
                self.send_json({"object": "list", "data": models, "models": []} if found else {}, 200 if found else 404)

            def do_POST(self):
                length = self.headers.get("Content-Length")
                body = self.rfile.read(int(length)) if length else self.read_chunks()
                model.serve(self, self.path, body)

            def read_chunks(self):
                whole = b""
                while "chunked" in self.headers.get("Transfer-Encoding", ""):
                    size = int(self.rfile.readline().split(b";")[0], 16)
                    whole += self.rfile.read(size)
                    self.rfile.readline()
                    if size == 0:
                        break
                return whole

            def send_json(self, value, code=200):
                data = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def send_events(self, events, is_chat, is_named):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                for event in events:
                    name = f"event: {event['type']}\n" if is_named else ""
                    self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
                if is_chat:
                    self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, agent):
        return f"http://127.0.0.1:{self.server.server_port}/{agent}"

    def agent(self, name):
        with self.lock:
            return self.agents.setdefault(name, Agent())

    def note(self, *words):
        with self.lock:
            self.log.write(f"{time.monotonic():.3f} {' '.join(map(str, words))}\n")
            self.log.flush()

    def serve(self, handler, path, body):
        path, _, query = path.partition("?")
        found = next((rest for rest in PROTOCOLS if path.endswith(rest[0])), None)
        if found is None:
            self.note("POST", path)
            counts = {"input_tokens": 10, "totalTokens": 10}
            return handler.send_json(counts if "count" in path else {}, 200 if "count" in path else 404)
        ending, read, write = found
        body = json.loads(body)
        name = path.split("/")[1]
        agent = self.agent(name)
        turn = read(body)
        request = Request(name, turn)
        tool = shell_tool(turn.tools)
        command = next_command(turn) if tool else None
        with self.lock:
            self.number += 1
            number = self.number
        if agent.hold and tool:
            agent.held_since = time.monotonic()
            agent.hold.wait(60)
        if command:
            call = (tool[0], shell_arguments(tool[1], command.replace("$MODEL_ME", name)) | agent.extra)
        else:
            call = agent_call(turn)
        self.note("POST", path, "tools:", [tool for tool, _ in turn.tools], "new:", json.dumps(request.text[-1500:]),
                  "results:", json.dumps(request.results), "call:", json.dumps(call))
        # Only a request that offers tools belongs to the conversation; others ask for a title or a summary.
        agent.requests.append(request)
        agent.owes = call is not None if tool else agent.owes
        whole, events = write(call, "done", number)
        is_stream = body.get("stream") or "stream" in path or "alt=sse" in query
        if not is_stream:
            return handler.send_json(whole)
        handler.send_events(events, ending == "/chat/completions", "type" in events[0])
