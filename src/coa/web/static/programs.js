// The same question as a request of one's own, against POST /v1/responses.

/** For a shell: everything in single quotes is literal. */
function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** `turns` are the questions and answers before this one. */
function input(question, turns) {
  if (!turns.length) return question;
  const earlier = turns.flatMap(([asked, answer]) => [
    { role: "user", content: asked },
    { role: "assistant", content: answer },
  ]);
  return [...earlier, { role: "user", content: question }];
}

export function asCurl(agent, question, turns, withKey) {
  const body = JSON.stringify({ model: agent, input: input(question, turns) }, null, 2);
  return [
    `curl ${location.origin}/v1/responses \\`,
    `  -H 'Content-Type: application/json' \\`,
    ...(withKey ? [`  -H "Authorization: Bearer $COA_SERVE_KEY" \\`] : []),
    `  -d ${quoted(body)}`,
  ].join("\n");
}

/** A JSON string is a Python string too, and so are lists and objects of them. */
export function asPython(agent, question, turns, withKey) {
  const key = withKey ? `os.environ["COA_SERVE_KEY"]` : `"none"`;
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key})`,
    "response = client.responses.create(",
    `    model=${JSON.stringify(agent)},`,
    `    input=${JSON.stringify(input(question, turns), null, 4).replaceAll("\n", "\n    ")},`,
    ")",
    "print(response.output_text)",
  ].join("\n");
}
