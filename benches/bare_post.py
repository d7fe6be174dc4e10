#!/usr/bin/env python3
"""What `benches/run post` measures the links of letters beside: the clients that Python has, by themselves.

    bare_post.py relay PORT COUNT TOKEN TOKEN     COUNT letters from one account to another, by HTTP
    bare_post.py mail PORT COUNT IMAP_PORT        by SMTP, then by IMAP
    bare_post.py ftp PORT COUNT                   one file each, stored twice and fetched
    bare_post.py amp PORT COUNT                   routed, asked for and acknowledged

Each sends one letter after another as a careful program does, on a connection of its own where msgfs has one,
then fetches all of them; prints the seconds of both. Nothing is put on a disk.
"""

import base64
import ftplib
import hashlib
import imaplib
import io
import json
import smtplib
import sys
import time
from collections.abc import Callable
from email.message import EmailMessage
from http.client import HTTPConnection

BODY = "the schema migration is done, please review the branch before it is merged. " * 6


def ask(port: int, method: str, path: str, body: object = None, token: str = "") -> object:
    """One request on a connection of its own."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, None if body is None else json.dumps(body, separators=(",", ":")), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise SystemExit(f"{method} {path}: {answer.status} {text!r}")
    return json.loads(text)


def relay(port: int, count: int, mine: str, theirs: str) -> tuple[Callable[[], object], Callable[[], int]]:
    """Two accounts of a relay."""
    def send() -> None:
        for n in range(count):
            ask(port, "POST", "/send", {"to": "bare-zed.agenttalk", "payload": f"{BODY}{n}"}, mine)

    return send, lambda: len(ask(port, "GET", "/messages", None, theirs)["messages"])


def mail(port: int, count: int, imap_port: str) -> tuple[Callable[[], object], Callable[[], int]]:
    """Two addresses of a mail server."""
    def send() -> None:
        for n in range(count):
            letter = EmailMessage()
            letter["From"], letter["To"], letter["Subject"] = "a@bare.example", "z@bare.example", f"letter {n}"
            letter.set_content(f"{BODY}{n}", cte="base64")
            with smtplib.SMTP("127.0.0.1", port) as connection:
                connection.send_message(letter)

    def fetch() -> int:
        connection = imaplib.IMAP4("127.0.0.1", int(imap_port))
        connection.login("z@bare.example", "password")
        connection.select("INBOX", readonly=True)
        found = connection.uid("SEARCH", None, "ALL")[1][0].split()
        got = sum(connection.uid("FETCH", uid.decode(), "(RFC822)")[0] == "OK" for uid in found)
        connection.logout()
        return got

    return send, fetch


def ftp(port: int, count: int) -> tuple[Callable[[], object], Callable[[], int]]:
    """A folder of an FTP server."""
    def connect() -> ftplib.FTP:
        connection = ftplib.FTP()
        connection.connect("127.0.0.1", port)
        connection.login("agentoftp", "agentoftp_pass")
        return connection

    def send() -> None:
        """Each letter and the copy that AgentAZAll keeps on the server. Neither is ever half there."""
        connection = connect()
        for folder in ("temp", "bare", "copies"):
            connection.mkd(folder)
        for n in range(count):
            for folder in ("bare", "copies"):
                connection.storbinary(f"STOR temp/{n}.txt", io.BytesIO(f"{BODY}{n}".encode()))
                connection.rename(f"temp/{n}.txt", f"{folder}/{n}.txt")
        connection.quit()

    def fetch() -> int:
        connection = connect()
        connection.cwd("bare")
        names = connection.nlst()
        for name in names:
            connection.retrbinary(f"RETR {name}", lambda _: None)
        connection.quit()
        return len(names)

    return send, fetch


def amp(port: int, count: int) -> tuple[Callable[[], object], Callable[[], int]]:
    """Two agents of an AMP provider, registered here."""
    import nacl.signing

    def register(name: str) -> tuple[str, nacl.signing.SigningKey, str]:
        key = nacl.signing.SigningKey(hashlib.sha256(name.encode()).digest())
        der = bytes.fromhex("302a300506032b6570032100") + key.verify_key.encode()
        pem = f"-----BEGIN PUBLIC KEY-----\n{base64.b64encode(der).decode()}\n-----END PUBLIC KEY-----\n"
        said = ask(port, "POST", "/v1/register", {"name": name, "tenant": "acme", "public_key": pem})
        return said["address"], key, said["api_key"]

    (mine, key, token), (theirs, _, their_token) = register("bare-bar"), register("bare-zed")

    def send() -> None:
        for n in range(count):
            payload = {"message": f"{BODY}{n}", "type": "notification"}
            digest = hashlib.sha256(json.dumps(payload, separators=(",", ":")).encode()).digest()
            signed = f"{mine}|{theirs}|letter|normal||{base64.b64encode(digest).decode()}"
            signature = base64.b64encode(key.sign(signed.encode()).signature).decode()
            ask(port, "POST", "/v1/route", {"to": theirs, "subject": "letter", "priority": "normal", "payload": payload,
                                            "signature": signature, "idempotency_key": f"bare{n}"}, token)

    def fetch() -> int:
        got = 0
        while waiting := ask(port, "GET", "/v1/messages/pending?limit=100", None, their_token)["messages"]:
            ids = [one["id"] for one in waiting]
            ask(port, "POST", "/v1/messages/pending/ack", {"ids": ids}, their_token)
            got += len(ids)
        return got

    return send, fetch


def main() -> None:
    """Sends, fetches, counts."""
    engine, port, count, *more = sys.argv[1:]
    send, fetch = {"relay": relay, "mail": mail, "ftp": ftp, "amp": amp}[engine](int(port), int(count), *more)
    start = time.perf_counter()
    send()
    sent = time.perf_counter()
    got = fetch()
    fetched = time.perf_counter()
    if got != int(count):
        raise SystemExit(f"sent {count} letters, got {got}")
    print(sent - start, fetched - sent)


if __name__ == "__main__":
    main()
