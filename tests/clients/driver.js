// What a program with the openai package does, by name: `node --input-type=module - NAME < driver.js`, in the folder
// where the package is installed. Each fact that a test asks for is a line of JSON.

import OpenAI from "openai";

const { BASE_URL, API_KEY, SESSION, MODEL } = process.env;
const client = connect();
const inSession = { headers: { "X-Session-Id": SESSION, "X-User-Id": "ada" } };
const question = { role: "user", content: "My name is Ada." };
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const reports = { "call-1": "Sunny.", "call-2": "Rain." };

const programs = {
  async chat() {
    const { data, response, request_id } = await create({ messages: [question], temperature: 0.5 }).withResponse();
    tell({ text: data.choices[0].message.content, usage: data.usage, request_id });
    tell({ headers: Object.fromEntries(response.headers) });
    const second = await create({ messages: [{ role: "user", content: "Who am I?" }] });
    tell({ text: second.choices[0].message.content });
  },

  async session_in_the_body() {
    const completion = await client.chat.completions.create({ model: MODEL, messages: [question], session_id: SESSION });
    tell({ text: completion.choices[0].message.content });
  },

  async stream() {
    const options = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await create({ messages: [question], ...options })) tell(chunk);
  },

  async stream_helper() {
    const runner = client.chat.completions.stream({ model: MODEL, messages: [question], tools: [weather] }, inSession);
    runner.on("content", (delta) => tell({ delta }));
    tell({ message: await runner.finalMessage() });
  },

  async aborted_stream() {
    const stream = await create({ messages: [question], stream: true });
    for await (const chunk of stream) {
      tell({ delta: chunk.choices[0].delta.content });
      if (chunk.choices[0].delta.content) break;
    }
    tell({ aborted: stream.controller.signal.aborted });
  },

  async broken_stream() {
    const stream = await create({ messages: [question], stream: true });
    await failure(async () => {
      for await (const chunk of stream) tell({ delta: chunk.choices[0].delta.content });
    });
  },

  async results_only() {
    const asked = await create({ messages: [question], tools: [weather] });
    const calls = asked.choices[0].message.tool_calls;
    const results = calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: reports[id] }));
    const answer = await create({ messages: results, tools: [weather] });
    tell({ calls, text: answer.choices[0].message.content });
  },

  async run_tools() {
    await runTools({ stream: false });
  },

  async run_tools_streamed() {
    await runTools({ stream: true });
  },

  async models() {
    for await (const model of client.models.list()) tell({ id: model.id });
  },

  async errors() {
    await failure(() => client.chat.completions.create({ model: MODEL, messages: [question] }));
    await failure(() => client.embeddings.create({ model: MODEL, input: "Ada" }));
    await failure(() => client.responses.create({ model: MODEL, input: "Ada" }));
    await failure(() => create({ messages: [] }));
    await failure(() => connect({ apiKey: "wrong" }).chat.completions.create({ model: MODEL, messages: [question] }));
  },

  async upstream_error() {
    await failure(() => create({ messages: [question] }));
  },

  async busy() {
    const memory = { on_busy: "reject" };
    await failure(() =>
      client.chat.completions.create({ model: MODEL, messages: [question], session_id: SESSION, memory }),
    );
  },

  async retry() {
    const patient = connect({ maxRetries: 2 });
    const completion = await patient.chat.completions.create({ model: MODEL, messages: [question] }, inSession);
    tell({ text: completion.choices[0].message.content });
  },
};

function connect(options) {
  return new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0, ...options });
}

function create(request) {
  return client.chat.completions.create({ model: MODEL, ...request }, inSession);
}

// The package's own loop: it runs the tools and resends the whole conversation with their results.
async function runTools({ stream }) {
  const run = ({ city }) => ({ Paris: "Sunny.", Rome: "Rain." })[city];
  const tool = { ...weather, function: { ...weather.function, function: run, parse: JSON.parse } };
  const runner = client.chat.completions.runTools(
    { model: MODEL, messages: [question], tools: [tool], stream },
    inSession,
  );
  runner.on("functionToolCallResult", (result) => tell({ result }));
  tell({ text: await runner.finalContent() });
}

async function failure(attempt) {
  try {
    await attempt();
    tell({ error: null });
  } catch (error) {
    const { status, message, type, code, param, requestID } = error;
    tell({ error: error.constructor.name, status, message, type, code, param, request_id: requestID });
  }
}

function tell(fact) {
  console.log(JSON.stringify(fact));
}

await programs[process.argv[2]]();
