#!/usr/bin/env node
// swarm-mail: a library for Node over libSQL. It lives in the agent's own process, here the adapter.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const folder = join(process.env.AGENT_MAIL_NODE, "node_modules/swarm-mail");
let swarm, project;
const ALL = 1000000;

class Refused extends Error {}

const operations = {
  async version() {
    return { program: `swarm-mail ${JSON.parse(readFileSync(join(folder, "package.json"))).version}` };
  },
  async start({ root, agents, mine, first }) {
    process.env.HOME = root;
    project = root;
    swarm = await import(pathToFileURL(join(folder, "dist/index.js")));
    for (const name of first ? agents : mine) {
      await swarm.initSwarmAgent({ projectPath: project, agentName: name });
    }
    return { way: "library", processes: { "": process.pid }, groups: true, keys: false };
  },
  async send({ sender, to, subject, text }) {
    const sent = await swarm.sendSwarmMessage({ projectPath: project, fromAgent: sender, toAgents: to, subject, body: text });
    if (!sent.success) throw new Refused("success is false");
  },
  async list({ me }) {
    // Without a limit it shows the newest five.
    const inbox = await swarm.getSwarmInbox({ projectPath: project, agentName: me, unreadOnly: true });
    return { ids: inbox.messages.map((message) => String(message.id)) };
  },
  async read({ me, id }) {
    const message = await swarm.readSwarmMessage({ projectPath: project, messageId: Number(id), agentName: me, markAsRead: true });
    if (!message) throw new Refused(`there is no ${id}`);
    return { from: message.from_agent, text: message.body, mark: "" };
  },
  async everything({ me }) {
    const swarmMail = await swarm.getSwarmMailLibSQL(project);
    const messages = await swarmMail.getInbox(project, me, { limit: ALL, includeBodies: false });
    return { messages: messages.map((m) => ({ id: String(m.id), from: m.from_agent, text: m.subject, mark: "" })) };
  },
  async wait({ me, subject, seconds }) {
    const end = Date.now() + seconds * 1000;
    while (Date.now() < end) {
      try {
        const inbox = await swarm.getSwarmInbox({ projectPath: project, agentName: me, unreadOnly: true });
        if (inbox.messages.some((message) => message.subject === subject)) return { polled: true };
      } catch (error) {
        // The database is locked while somebody writes; the reader looks again.
        if (!String(error.message).includes("SQLITE_BUSY")) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    throw new Refused("it did not come");
  },
  async forge({ way, victim, to, subject, text }) {
    if (way === "signature") throw new Refused("there are no signatures");
    if (way === "name") return operations.send({ sender: victim, to: [to], subject, text });
    // A writer beside the program: the library's own events, without the library.
    const { createClient } = createRequire(join(folder, "package.json"))("@libsql/client");
    const db = createClient({ url: `file:${join(process.env.HOME, ".config/swarm-tools/swarm.db")}` });
    const made = await db.execute({
      sql: "INSERT INTO messages (project_key, from_agent, subject, body, importance, ack_required, created_at) VALUES (?,?,?,?,'normal',0,?)",
      args: [project, victim, subject, text, Date.now()],
    });
    await db.execute({ sql: "INSERT INTO message_recipients (message_id, agent_name) VALUES (?,?)", args: [Number(made.lastInsertRowid), to] });
  },
  async session({ me }) {
    // The tools of its plugin for OpenCode have these names; an agent sees their arguments and results as JSON.
    const steps = [];
    const call = async (tool, args, work) => {
      const result = await work();
      steps.push([`${tool}(${JSON.stringify(args)})`, JSON.stringify(result, null, 2)]);
      return result;
    };
    const inbox = await call("swarmmail_inbox", {}, () => swarm.getSwarmInbox({ projectPath: project, agentName: me }));
    for (const { id } of inbox.messages.slice(0, 3)) {
      await call("swarmmail_read_message", { message_id: id }, () =>
        swarm.readSwarmMessage({ projectPath: project, messageId: id, agentName: me, markAsRead: true }));
    }
    const [first] = inbox.messages;
    const answer = { to: [first.from_agent], subject: `Re: ${first.subject}`, body: "Done: all tests pass." };
    await call("swarmmail_send", answer, () =>
      swarm.sendSwarmMessage({ projectPath: project, fromAgent: me, toAgents: answer.to, subject: answer.subject, body: answer.body }));
    return { steps };
  },
  async stop() {},
};

// The library prints to standard output, which belongs to the protocol.
const write = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr);

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...request } = JSON.parse(line);
  let answer;
  if (!operations[op]) answer = { ok: false, error: `this adapter has no ${op}`, missing: true };
  else {
    try {
      answer = { ok: true, ...(await operations[op](request)) };
    } catch (error) {
      answer = { ok: false, error: String(error.message ?? error) };
    }
  }
  write(`${JSON.stringify(answer)}\n`);
  if (op === "stop") process.exit(0);
}
