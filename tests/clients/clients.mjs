// Asks with Node's fetch, and with its HTTP/2, as the other clients of this folder do. Not part of `make test`, which asks for no Node:
//   printf '/v1/tasks text/plain 1024\n' | node tests/clients/clients.mjs http://127.0.0.1:7070
import http2 from "node:http2";
import { createInterface } from "node:readline";

const base = process.argv[2];

async function byFetch(path, kind, size, chunked) {
  const whole = new Uint8Array(size).fill(32);
  const body = chunked ? new Blob([whole]).stream() : whole;
  const options = { method: "POST", headers: { "content-type": kind }, body, duplex: "half" };
  const answer = await fetch(base + path, options);
  await answer.text();
  const after = await fetch(base + "/livez");
  await after.text();
  return `${answer.status} ${after.status}`;
}

function byHttp2(session, headers, body) {
  return new Promise((resolve, reject) => {
    const stream = session.request(headers);
    let status;
    stream.on("response", (head) => (status = head[":status"]));
    stream.on("error", reject);
    stream.on("data", () => {});
    stream.on("close", () => (status ? resolve(status) : reject(new Error("closed"))));
    body ? stream.end(body) : stream.end();
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  const [path, kind, size] = line.split(" ");
  const session = http2.connect(base);
  const over2 = async () => {
    const head = { ":method": "POST", ":path": path, "content-type": kind };
    const status = await byHttp2(session, head, Buffer.alloc(Number(size), 32));
    return `${status} ${await byHttp2(session, { ":path": "/livez" })}`;
  };
  for (const [name, ask] of [
    ["fetch", () => byFetch(path, kind, Number(size), false)],
    ["fetch,chunked", () => byFetch(path, kind, Number(size), true)],
    ["node:http2", over2],
  ]) {
    const outcome = await ask().catch((error) => `${error.name} ${error.message}:${error.cause?.code ?? error.code}`.replaceAll(/\s/g, "_"));
    console.log(name, path, kind, size, outcome);
  }
  session.close();
}
