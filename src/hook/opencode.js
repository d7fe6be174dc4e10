// msgfs-hook 2
// Written by `msgfs hook install`; `msgfs hook uninstall` removes it.
// Wakes a session when mail has arrived. It only ever passes on what msgfs prints: who wrote, and where it lies.
import { spawn } from "node:child_process"
import { existsSync } from "node:fs"
import { fileURLToPath } from "node:url"

const PROGRAM = "msgfs"

// Uninstalled, it does nothing more.
function isInstalled() {
  try { return existsSync(fileURLToPath(import.meta.url)) } catch { return true }
}

// The bell of one folder: it is for the session in which a person has typed last.
function bell(cwd, env, wake, get) {
  const waiting = new Map(), children = new Set(), said = new Map()
  let current

  function end(id) {
    try { waiting.get(id)?.kill("SIGTERM") } catch {}
    waiting.delete(id)
  }

  function run(id, args, stdout) {
    const child = spawn(PROGRAM, ["hook", "run", ...args], { env, stdio: ["pipe", stdout, "ignore"] })
    child.on("error", () => {})
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify({ session_id: id, cwd }) + "\n")
    return child
  }

  async function ring(id, text) {
    // What is prompted now is known again by its text.
    said.set(id, text)
    await wake(id, text)
  }

  // A session below another has no mail of its own.
  async function isChild(id) {
    if (children.has(id)) return true
    try { const found = await get(id); return Boolean((found?.data ?? found)?.parentID) } catch { return false }
  }

  return {
    born(told) {
      if (told?.parentID ?? told?.info?.parentID) children.add(told.sessionID ?? told.info?.id)
    },
    async idle(id) {
      if ((current && current !== id) || !isInstalled() || await isChild(id)) return
      end(id)
      const child = run(id, ["stop", "--for", "opencode", "--wait"], "pipe")
      let text = ""
      waiting.set(id, child)
      child.stdout.on("data", (part) => { if (text.length < 4096) text += part })
      child.on("close", async (code) => {
        if (waiting.get(id) === child) waiting.delete(id)
        try { if (code === 10 && text.trim()) await ring(id, text.trim()) } catch {}
      })
    },
    async prompted(id, text) {
      if (said.has(id) && said.get(id) === text.trim()) { said.delete(id); return }
      if (await isChild(id)) return
      // The session that was left hears nothing more.
      for (const other of [...waiting.keys()]) {
        if (other === id) continue
        end(other)
        run(other, ["session-end", "--for", "opencode"], "ignore")
      }
      current = id
      if (isInstalled()) run(id, ["prompt", "--for", "opencode"], "ignore")
    },
    gone(id) {
      end(id)
      if (current === id) current = undefined
    },
    dispose() { for (const id of [...waiting.keys()]) end(id) },
  }
}

// OpenCode 1.
async function server({ client, directory }) {
  const wake = (id, text) => client.session.promptAsync({ path: { id }, body: { parts: [{ type: "text", text }] } })
  const mail = bell(directory, process.env, wake, (id) => client.session.get({ path: { id } }))
  const event = async ({ event: { type, properties: told } }) => {
    if (type === "session.created") mail.born(told)
    const id = told?.sessionID ?? told?.info?.id
    if (type === "session.deleted") mail.gone(id)
    if (id && type === "session.status" && told.status?.type === "idle") await mail.idle(id)
  }
  const message = async ({ sessionID }, { parts }) => {
    const text = (parts ?? []).filter((part) => part.type === "text").map((part) => part.text).join("\n")
    if (sessionID) await mail.prompted(sessionID, text)
  }
  // Nobody waits for them: they may ask whoever tells of the event.
  return {
    event: async (input) => { event(input).catch(() => {}) },
    "chat.message": async (input, output) => { message(input, output).catch(() => {}) },
    dispose: async () => mail.dispose(),
  }
}

// OpenCode 2. One service serves all folders, so who it was started as says nothing.
async function setup(ctx) {
  const stop = new AbortController()
  const directory = ctx.location?.directory
  const { MSGFS_ME: _, ...env } = process.env
  const mail = bell(directory, env, (id, text) => ctx.session.synthetic({ sessionID: id, text }), (id) => ctx.session.get({ sessionID: id }))
  const event = async ({ type, data: told, location }) => {
    if (location?.directory && location.directory !== directory) return
    if (type === "session.created") mail.born(told)
    const id = told?.sessionID ?? told?.info?.id
    if (type === "session.deleted") mail.gone(id)
    if (id && type === "session.input.admitted" && told.input?.type === "user") {
      await mail.prompted(id, told.input.data?.text ?? told.input.text ?? "")
    }
    if (id && /^session\.execution\.(succeeded|failed|interrupted)$/.test(type)) await mail.idle(id)
  }
  void (async () => {
    try { for await (const each of await ctx.event.subscribe({ signal: stop.signal })) event(each).catch(() => {}) } catch {}
  })()
  return () => { stop.abort(); mail.dispose() }
}

export default { id: "msgfs", server, setup }
