// Plays OpenCode 1 or 2 with the plugin: node opencode.mjs PLUGIN "AGE SCENE". Prints each prompt.
import { rmSync } from "node:fs"
import { pathToFileURL } from "node:url"

const [age, scene] = process.argv[3].split(" ")
process.env.PATH = process.env.NEW_PATH
process.on("unhandledRejection", (e) => { console.error("unhandled", e); process.exit(1) })
const plugin = (await import(pathToFileURL(process.argv[2]))).default
const pause = (ms) => new Promise((done) => setTimeout(done, ms))

const prompt = async (id, text) => {
  if (scene === "throws") throw new Error("no")
  console.log(id, text)
  if (scene === "typed") await send.prompted(id, text, "synthetic")
}
const parent = async () => (scene === "asked" ? "root" : undefined)

let send, end
if (age === "1") {
  const client = {
    session: {
      get: async () => ({ data: { parentID: await parent() } }),
      promptAsync: async ({ path, body }) => prompt(path.id, body.parts[0].text),
    },
  }
  const hooks = await plugin.server({ client, directory: "/project" })
  const event = (type, properties) => hooks.event({ event: { type, properties } })
  send = {
    created: (id, parentID) => event("session.created", { info: { id, parentID } }),
    idle: (sessionID) => event("session.status", { sessionID, status: { type: "idle" } }),
    deleted: (id) => event("session.deleted", { info: { id } }),
    prompted: (sessionID, text) => hooks["chat.message"]({ sessionID }, { parts: [{ type: "text", text }] }),
    odd: () => event("session.status", undefined),
  }
  end = () => hooks.dispose()
} else {
  const queue = []
  let wake
  const event = async (type, data) => { queue.push({ type, data, location: { directory: "/project" } }); wake?.() }
  const ctx = {
    location: { directory: "/project" },
    session: {
      get: async () => ({ parentID: await parent() }),
      synthetic: async ({ sessionID, text }) => prompt(sessionID, text),
    },
    event: {
      subscribe: async function* ({ signal }) {
        while (!signal.aborted) {
          while (queue.length) yield queue.shift()
          await new Promise((done) => { wake = done; signal.addEventListener("abort", done) })
        }
      },
    },
  }
  end = await plugin.setup(ctx)
  send = {
    created: (sessionID, parentID) => event("session.created", { sessionID, parentID }),
    idle: (sessionID) => event("session.execution.succeeded", { sessionID }),
    deleted: (sessionID) => event("session.deleted", { sessionID }),
    prompted: (sessionID, text, type = "user") => event("session.input.admitted", { sessionID, input: { type, data: { text } } }),
    odd: () => event("session.execution.failed", undefined),
  }
}

await send.odd()
await send.created("s", undefined)
await send.created("c", "s")
if (scene === "child") await send.idle("c")
else if (scene === "typed") {
  await send.prompted("s", "go on")
  await send.prompted("c", "do it")
  await pause(1000)
  await send.idle("s")
} else if (scene === "left") {
  await send.prompted("s", "one")
  await pause(500)
  await send.idle("s")
  await pause(500)
  await send.created("t", undefined)
  await send.prompted("t", "two")
  await pause(500)
  await send.idle("t")
  await send.idle("s")
} else if (scene === "removed") {
  rmSync(process.argv[2])
  await send.prompted("s", "one")
  await send.idle("s")
}
else if (scene === "twice") {
  await send.idle("s")
  await pause(500)
  await send.idle("s")
  await pause(500)
  await send.deleted("s")
} else await send.idle("s")
await pause(1500)
await end()
await pause(100)
process.exit(0)
