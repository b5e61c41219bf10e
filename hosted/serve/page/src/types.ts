/** What the page keeps: conversations, their messages, and how each answer was made. */

/** Who wrote a message. */
export type Role = 'user' | 'assistant' | 'tool';

/** A text file that was dropped into a message. */
export interface TextFile {
  name: string;
  text: string;
}

/** A call that the model wrote. */
export interface ToolCall {
  id: string;
  name: string;
  /** JSON, which may be incomplete while it is streamed. */
  arguments: string;
}

/** llama-server's `timings`, as far as the page shows them. */
export interface Timings {
  cache_n: number;
  prompt_n: number;
  prompt_ms: number;
  prompt_per_second: number;
  predicted_n: number;
  predicted_ms: number;
  predicted_per_second: number;
  queued_ms?: number;
  draft_n?: number;
  draft_n_accepted?: number;
}

/** One request: a whole answer, or the continuation of one. Its texts are parts of the message that has it. */
export interface Run {
  /** All fields of the request but its messages, with the seed: the same request gives the same text. */
  fields: Record<string, unknown>;
  system: string;
  /** The length of the content and of the reasoning that it continues, in UTF-16 units. */
  from: number;
  fromReasoning: number;
  fingerprint?: string;
  /** The name of the model that answered. */
  model?: string;
  timings?: Timings;
  /** Milliseconds from the click until the first token arrived. */
  firstTokenMs?: number;
  /** `finish_reason`; absent if the answer was stopped or the connection lost. */
  finish?: string;
  /** The id of the last event of a stream that may be taken up again. */
  lastEvent?: string;
}

/** A message. Messages form a tree: alternatives have the same parent. Their texts do not change once written. */
export interface Message {
  id: string;
  chat: string;
  parent: string | null;
  role: Role;
  created: number;
  content: string;
  reasoning?: string;
  calls?: ToolCall[];
  /** Of a tool's result: the call that it answers. */
  callId?: string;
  files?: TextFile[];
  runs?: Run[];
  /** Whether the answer is being written: one that was left so is taken up again. */
  open?: boolean;
  error?: string;
}

/** The value of a sampling parameter. */
export type Parameter = number | string | boolean | readonly string[];

/** Settings of a conversation. What is not set is the server's choice. */
export interface Settings {
  model?: string;
  /** The scales of adapters by name, in place of the server's. */
  adapters?: Record<string, number>;
  system: string;
  /** Sampling parameters by llama-server's names. */
  params: Record<string, Parameter>;
  thinking?: boolean;
  effort?: string;
  /** A JSON list of tools, in OpenAI's form. */
  tools?: string;
  /** A JSON object of further fields of the request. */
  extra?: string;
}

/** A conversation. */
export interface Chat {
  id: string;
  title: string;
  /** Whether a person chose the title. */
  titled?: boolean;
  created: number;
  updated: number;
  /** The last message of the branch that is shown. */
  leaf: string | null;
  settings: Settings;
}

/** A model or adapter of `/v1/models`. */
export interface Model {
  id: string;
  parent: string | null;
  status: { value: string; failed?: boolean; reason?: string };
  max_model_len?: number;
  meta?: { n_params?: number; size?: number; n_ctx_train?: number };
}

/** An adapter of `/lora-adapters`. */
export interface Adapter {
  id: number;
  name: string;
  scale: number;
  model: string;
}

/** `/props`, as far as the page uses it. */
export interface Props {
  default_generation_settings: { n_ctx: number; params: Record<string, unknown> };
  chat_template: string;
  system_fingerprint: string;
  build_info: string;
  model_alias: string;
}
