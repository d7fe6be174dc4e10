"""The server of Codex to which its other clients speak. It makes sessions that `codex exec` cannot make."""

import json
import subprocess
import threading


class AppServer:
    """A running `codex app-server`, which speaks JSON-RPC with one message a line."""

    def __init__(self, agent, *words, seconds=120):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [agent.bed.program("codex"), "app-server", *words], env=agent.env, cwd=agent.project, text=True,
            stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL,
        )
        # The end of a server that hangs ends the wait for its next line.
        self.watch = threading.Timer(seconds, self.process.kill)
        self.watch.start()
        self.number = 0
        self.told = []

    def __enter__(self):
        client = {"name": "msgfs-harness", "version": "0"}
        self.ask("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        self.write({"method": "initialized"})
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.watch.cancel()

    def write(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise TimeoutError("the app-server has ended")
        return json.loads(line)

    def ask(self, method, **params):
        """Sends a request, and returns its result."""
        self.number += 1
        self.write({"id": self.number, "method": method, "params": params})
        while True:
            message = self.read()
            if message.get("id") != self.number or "method" in message:
                self.told.append(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            else:
                return message["result"]

    def wait_for_turn(self, thread):
        """Waits for the end of a turn of a thread, and returns the id of the turn."""
        while True:
            for message in self.told:
                params = message.get("params", {})
                if message.get("method") == "turn/completed" and params["threadId"] == thread:
                    self.told.remove(message)
                    return params["turn"]["id"]
            self.told.append(self.read())

    def start(self, **params):
        """Starts a thread, and returns its id."""
        return self.ask("thread/start", **params)["thread"]["id"]

    def fork(self, thread):
        """Forks a thread, and returns the id of the fork."""
        return self.ask("thread/fork", threadId=thread)["thread"]["id"]

    def say(self, thread, text):
        """Runs a turn with a prompt to its end, and returns the id of the turn."""
        self.ask("turn/start", threadId=thread, input=[{"type": "text", "text": text}])
        return self.wait_for_turn(thread)

    def compact(self, thread):
        """Compacts a thread, as `/compact` does in a terminal."""
        self.ask("thread/compact/start", threadId=thread)
        self.wait_for_turn(thread)
