/** What people write as JSON in the settings: tools, and further fields of the request. Errors name what is wrong. */

/** Fields that the page sets itself, and where they are chosen instead. */
const RESERVED: Record<string, string> = {
  messages: 'the page sends the conversation',
  prompt: 'the page sends the conversation',
  model: 'choose it above',
  tools: 'they have a field above',
  system: 'it has a field above',
  lora: 'adapters have fields above',
  stream: 'the page reads streams only',
  stream_options: 'the page reads streams only',
  n: 'the page shows one answer at a time',
  return_progress: 'the page sets it',
  timings_per_token: 'the page sets it',
  continue_final_message: 'the page sets it',
  add_generation_prompt: 'the page sets it',
};

/** Further fields of a request. Throws if the text is not a JSON object, or has a field that the page sets. */
export function extraOf(text: string | undefined): Record<string, unknown> {
  if (!text?.trim()) return {};
  const value = parse(text, 'The further fields are');
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('The further fields have to be a JSON object: {…}.');
  const reserved = Object.keys(value).find((name) => name in RESERVED);
  if (reserved) throw new Error(`The further fields cannot have "${reserved}": ${RESERVED[reserved]}.`);
  const { seed } = value as { seed?: unknown };
  if (seed !== undefined && !Number.isInteger(seed)) throw new Error('The further field "seed" has to be a whole number.');
  return value as Record<string, unknown>;
}

/** The tools. Throws if the text is not a JSON list of objects. */
export function toolsOf(text: string | undefined): unknown[] | undefined {
  if (!text?.trim()) return undefined;
  const value = parse(text, 'The list of tools is');
  if (!Array.isArray(value) || !value.every((tool) => typeof tool === 'object' && tool !== null && !Array.isArray(tool))) {
    throw new Error('The tools have to be a JSON list of objects: [{…}].');
  }
  return value as unknown[];
}

function parse(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} not JSON: ${(error as Error).message}`);
  }
}
