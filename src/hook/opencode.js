// msgfs-hook 1
// Written by `msgfs hook install`; `msgfs hook uninstall` removes it.
// Wakes a session when mail has arrived. It only ever passes on what msgfs prints: who wrote, and where it lies.
import { spawn } from "node:child_process"

const PROGRAM = "msgfs"
const waiting = new Map()
const children = new Set()

function end(id) {
  try { waiting.get(id)?.kill("SIGTERM") } catch {}
  waiting.delete(id)
}

function arm(id, cwd, wake, env) {
  try {
    end(id)
    const child = spawn(PROGRAM, ["hook", "run", "stop", "--for", "opencode", "--wait"], { env, stdio: ["pipe", "pipe", "ignore"] })
    let text = ""
    waiting.set(id, child)
    child.on("error", () => {})
    child.stdin.on("error", () => {})
    child.stdout.on("data", (part) => { if (text.length < 4096) text += part })
    child.on("close", async (code) => {
      if (waiting.get(id) === child) waiting.delete(id)
      try { if (code === 10 && text.trim()) await wake(text.trim()) } catch {}
    })
    child.stdin.end(JSON.stringify({ session_id: id, cwd }) + "\n")
  } catch {}
}

// A session below another has no mail of its own.
function born(told) {
  if (told?.parentID ?? told?.info?.parentID) children.add(told.sessionID ?? told.info?.id)
}

async function isChild(id, ask) {
  if (children.has(id)) return true
  try { const found = await ask(); return Boolean((found?.data ?? found)?.parentID) } catch { return false }
}

function dispose() { for (const id of [...waiting.keys()]) end(id) }

// OpenCode 1.
async function server({ client, directory }) {
  const event = async ({ event: { type, properties: told } }) => {
    if (type === "session.created") born(told)
    const id = told?.sessionID ?? told?.info?.id
    if (type === "session.deleted") end(id)
    if (!id || type !== "session.status" || told.status?.type !== "idle") return
    if (await isChild(id, () => client.session.get({ path: { id } }))) return
    arm(id, directory, (text) => client.session.promptAsync({ path: { id }, body: { parts: [{ type: "text", text }] } }), process.env)
  }
  // Nobody waits for it: it may ask whoever tells of the event.
  return { event: async (input) => { event(input).catch(() => {}) }, dispose: async () => dispose() }
}

// OpenCode 2. One service serves all folders, so who it was started as says nothing.
async function setup(ctx) {
  const stop = new AbortController()
  const directory = ctx.location?.directory
  const { MSGFS_ME: _, ...env } = process.env
  const event = async ({ type, data: told, location }) => {
    if (location?.directory && location.directory !== directory) return
    if (type === "session.created") born(told)
    const id = told?.sessionID ?? told?.info?.id
    if (type === "session.deleted") end(id)
    if (!id || !/^session\.execution\.(succeeded|failed|interrupted)$/.test(type)) return
    if (await isChild(id, () => ctx.session.get({ sessionID: id }))) return
    arm(id, directory, (text) => ctx.session.synthetic({ sessionID: id, text }), env)
  }
  void (async () => {
    try { for await (const each of await ctx.event.subscribe({ signal: stop.signal })) event(each).catch(() => {}) } catch {}
  })()
  return () => { stop.abort(); dispose() }
}

export default { id: "msgfs", server, setup }
