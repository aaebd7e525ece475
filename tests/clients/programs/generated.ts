// What a program does with the types that openapi-typescript generates, through openapi-fetch. Compiled with them, and
// run as `node generated.js NAME`; what a test asks for is one line of JSON.

import createClient from "openapi-fetch";
import type { components, paths } from "./turnkeeper.js";

type Problem = components["schemas"]["Problem"];

const { BASE_URL = "", API_KEY = "", SESSION = "", MESSAGES = "[]" } = process.env;
const headers = { Authorization: `Bearer ${API_KEY}` };
// Of what is answered in several types, this client wants JSON.
type Json = "application/json" | "application/problem+json";
const client = createClient<paths, Json>({ baseUrl: BASE_URL, headers });
const inSession = { path: { session_id: SESSION } };
const file = { path: { store: SESSION }, query: { path: "notes/db.md" } };

const programs: Record<string, () => Promise<unknown>> = {
  async create() {
    return data(await client.POST("/v1/sessions", { body: { id: SESSION, user_id: "ada" } }));
  },

  async append() {
    const events = JSON.parse(MESSAGES).map((message: Record<string, unknown>) => ({ message }));
    const body = { user_id: "ada", events };
    return data(await client.POST("/v1/sessions/{session_id}/events", { params: inSession, body }));
  },

  async window() {
    const params = { ...inSession, query: { last_n: 2, type: ["user" as const, "assistant" as const] } };
    return data(await client.GET("/v1/sessions/{session_id}/events", { params })).events.map((event) => event.text);
  },

  async context() {
    const params = { ...inSession, query: { max_tokens: 1000 } };
    return data(await client.GET("/v1/sessions/{session_id}/context", { params })).messages;
  },

  async search() {
    const body = { query: "postgresql" };
    const found = await client.POST("/v1/sessions/{session_id}/search", { params: inSession, body });
    return data(found).results.map((result) => result.text);
  },

  async chat() {
    const body = { session_id: SESSION, messages: [{ role: "user" as const, content: "What do we take?" }] };
    return data(await client.POST("/v1/chat", { body })).choices.map((choice) => choice.message.content);
  },

  // A stream is plain fetch: generated clients read whole answers.
  async stream() {
    const messages = [{ role: "user", content: "What do we take?" }];
    const body = JSON.stringify({ session_id: SESSION, stream: true, messages });
    const json = { ...headers, "Content-Type": "application/json" };
    const answer = await fetch(`${BASE_URL}/v1/chat`, { method: "POST", headers: json, body });
    const lines = (await answer.text()).split("\n").filter((line) => line.startsWith("data: {"));
    const chunks = lines.map((line) => JSON.parse(line.slice("data: ".length)));
    return chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  },

  async memory() {
    const put = await client.PUT("/v1/memories/{store}/file", {
      params: file,
      body: "We take PostgreSQL.\n",
      bodySerializer: (body) => body,
      headers: { "Content-Type": "text/plain" },
    });
    const got = await client.GET("/v1/memories/{store}/file", { params: file, parseAs: "text" });
    return { size: data(put).size, content: data(got) };
  },

  async missing() {
    return problem(await client.GET("/v1/sessions/{session_id}", { params: inSession }));
  },

  async refused() {
    const body = { query: " " };
    return problem(await client.POST("/v1/sessions/{session_id}/search", { params: inSession, body }));
  },
};

function data<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

// Compiles only where every error of an operation is a problem document.
function problem(answer: { data?: unknown; error?: Problem }): Problem {
  if (answer.error === undefined) throw new Error(JSON.stringify(answer.data));
  return answer.error;
}

console.log(JSON.stringify(await programs[process.argv[2] ?? ""]!()));
